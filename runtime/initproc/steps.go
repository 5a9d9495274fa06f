package initproc

import (
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

// step is one row of the table that a child goes through. Rows run top-down, each appends its system calls.
type step[T any] struct {
	name string
	plan func(p *Program, in T)
}

// createSteps is what the first process of a container does between clone and execve, in this order.
func createSteps() []step[*createState] {
	return []step[*createState]{
		{"hide from ptrace", func(p *Program, _ *createState) { planHide(p) }},
		{"join namespaces", func(p *Program, s *createState) { planJoin(p, s.Join, s.SetRootIDs) }},
		{"make namespaces", planUnshare},
		{"time namespace", planTimeNamespace},
		{"session", func(p *Program, s *createState) { planSession(p, s.Keyring, s.SelinuxLabel) }},
		{"host name", planHostname},
		// Propagation first: until "/" is a slave, every mount below would appear on the host.
		{"root file system", planRoot},
		{"mounts", planMounts},
		// Through the instance of proc that was just mounted, and before /proc/sys becomes read-only.
		{"sysctls", planSysctls},
		{"devices", planDevices},
		{"null device", planCreateNull},
		{"console", planConsole},
		{"working directory", planMakeCwd},
		{"masked paths", planMasks},
		{"read-only paths", planReadonlyPaths},
		// The host has placed the child in its cgroup, installed the network rules and run the hooks when it answers.
		{"wait for the host", planHostPoint},
		// A cgroup namespace is rooted where its creator stands: after the placement, not before.
		{"cgroup namespace", planCgroupNamespace},
		{"pivot_root", planPivot},
		{"process", func(p *Program, s *createState) { planProcess(p, &s.Process) }},
		{"wait for start", planWaitStart},
		{"execute", func(p *Program, s *createState) { planExecute(p, &s.Process) }},
	}
}

// execSteps is what a further process of a container does. Its tail is the first process's tail: the same limits,
// ids, capabilities, Landlock and seccomp.
func execSteps() []step[*execState] {
	return []step[*execState]{
		// Before setns: from then on the container's processes can see this one (CVE-2016-9962).
		{"hide from ptrace", func(p *Program, _ *execState) { planHide(p) }},
		{"initial CPUs", func(p *Program, s *execState) { planInitialAffinity(p, &s.Process) }},
		// Before the host lets it go on, and before it forks: what it forks is born in them.
		{"control groups", func(p *Program, s *execState) { planCgroups(p, s.Cgroups) }},
		{"wait for the host", func(p *Program, s *execState) { planRead(p, s.SyncFD) }},
		{"join namespaces", func(p *Program, s *execState) { planJoin(p, s.Join, s.SetRootIDs) }},
		// Last of the namespaces: what is born into the container's pid namespace has nothing of the host left.
		{"pid namespace", func(p *Program, s *execState) { planFork(p, s.SyncFD) }},
		{"seccomp listener", func(p *Program, s *execState) { planListenerState(p, &s.Process, s.SyncFD) }},
		{"root", planExecRoot},
		// Before Landlock and the working directory, which are of what the process will see.
		{"views", planViews},
		{"session", func(p *Program, s *execState) { planSession(p, s.Keyring, s.SelinuxLabel) }},
		{"null device", planExecNull},
		{"console", func(p *Program, s *execState) { planExecConsole(p, &s.Process) }},
		{"process", func(p *Program, s *execState) { planProcess(p, &s.Process) }},
		{"execute", func(p *Program, s *execState) { planExecute(p, &s.Process) }},
	}
}

// createState is the input of a create and what its steps hand on to each other.
type createState struct {
	*Create
	root   Cell // the attached root file system
	proc   Cell // an instance of proc that this child mounted; 0 if the spec has none
	devpts Cell // likewise devpts
	dev    Cell // /dev, once devices or the console need it
}

type execState struct{ *Exec }

// PlanCreate compiles the program of a container's first process. It makes no system call.
func PlanCreate(in *Create) *Program {
	p := newProgram(in.SyncFD)
	s := &createState{Create: in}
	s.root = p.cell(in.RootFD)
	for _, st := range createSteps() {
		p.begin(st.name)
		st.plan(p, s)
	}
	return p
}

// PlanExec compiles the program of a further process of a container. It makes no system call.
func PlanExec(in *Exec) *Program {
	p := newProgram(in.SyncFD)
	for _, st := range execSteps() {
		p.begin(st.name)
		st.plan(p, &execState{in})
	}
	return p
}

func planHide(p *Program) {
	p.call("set undumpable", unix.SYS_PRCTL, imm(unix.PR_SET_DUMPABLE), imm(0))
	p.call("set process name", unix.SYS_PRCTL, imm(unix.PR_SET_NAME), p.str(processName))
	// Modes of mount points and devices are meant literally; the container's own umask is set at the end.
	p.call("set umask", unix.SYS_UMASK, imm(0))
}

func planJoin(p *Program, join []Join, rootIDs bool) {
	for _, j := range join {
		p.call("join "+cloneFlagName(j.Flag)+" namespace", unix.SYS_SETNS, imm(j.FD), imm(j.Flag))
	}
	if rootIDs {
		// In a joined user namespace the child still has the host's ids, which may not be mapped there.
		// EINVAL: it maps no root, and the capabilities that setns(2) gave do without.
		p.call("set gid 0 of the user namespace", unix.SYS_SETRESGID, imm(0), imm(0), imm(0)).ignore(unix.EINVAL)
		p.call("set uid 0 of the user namespace", unix.SYS_SETRESUID, imm(0), imm(0), imm(0)).ignore(unix.EINVAL)
		// A change of ids resets the dumpable flag.
		p.call("set undumpable", unix.SYS_PRCTL, imm(unix.PR_SET_DUMPABLE), imm(0))
	}
}

// planUnshare makes the namespaces that have to belong to a user namespace that was joined: clone(2) makes them before
// there is a chance to join one. It always goes on in a child, as an exec does: the host has to know when they are there.
func planUnshare(p *Program, s *createState) {
	if s.Unshare == 0 {
		return
	}
	p.call("make namespaces in the joined user namespace", unix.SYS_UNSHARE, imm(s.Unshare))
	planFork(p, s.SyncFD)
}

// planCgroups moves the process into control groups. A pid limit that is reached lets it in, and refuses its fork.
func planCgroups(p *Program, groups []Cgroup) {
	for i := range groups {
		g := &groups[i]
		enter := p.call("enter cgroup "+g.Path, unix.SYS_WRITE, imm(g.FD), p.str("0"), imm(1))
		if g.Optional {
			enter.orElse(nil)
		} else {
			enter.expect(1)
		}
		// The container's processes see the child that is forked, which shall have nothing of the host's.
		p.call("close cgroup", unix.SYS_CLOSE, imm(g.FD))
	}
}

// planFork goes on in a child, which is born into the pid namespace that was joined, and whose parent is the creating
// process. The processes of the container see only that child. If this one were born there it would show them the host
// through /proc/PID/root until it has joined the other namespaces, and against a holder of CAP_SYS_PTRACE it is no help
// to be undumpable (TestAttack_CVE_2016_9962_ExecRoot).
func planFork(p *Program, syncFD int) {
	record, child := p.scratch(reportBytes), &Label{}
	p.call("fork into pid namespace", unix.SYS_CLONE, imm(unix.CLONE_PARENT|int(unix.SIGCHLD))).
		into(Cell(record.value)) //nolint:gosec // offsets in the writable data are small
	p.check("parent or child?", record, 1<<32-1, 0, unix.EPROTO).then(child).orElse(nil)
	// The parent's pid namespace is the creating process's, so the number means the same there.
	p.call("report the child", unix.SYS_WRITE, imm(syncFD), record, imm(reportBytes)).expect(reportBytes)
	p.call("leave the rest to the child", unix.SYS_EXIT_GROUP, imm(0))
	p.place(child)
}

func planSession(p *Program, keyring, label string) {
	// EPERM: the child leads a session already, since it leads its process group.
	p.call("create session", unix.SYS_SETSID).ignore(unix.EPERM)
	if keyring != "" {
		if label != "" {
			// The keyring belongs to whom it is for, and not to this program's domain. execve(2) forgets the setting.
			planAttributes(p, [][3]string{{"set label of the session keyring", "thread-self/attr/keycreate", label}})
		}
		// Without keys (ENOSYS) or over quota (EDQUOT) the container shares the caller's keyring, as under runc; the
		// agent profile refuses keyctl and add_key in any case.
		p.call("join session keyring", unix.SYS_KEYCTL, imm(unix.KEYCTL_JOIN_SESSION_KEYRING), p.str(keyring)).
			ignore(unix.ENOSYS, unix.EDQUOT, unix.EACCES, unix.EPERM)
	}
}

// planRead waits for one byte of the host; the end of the stream means that the host is gone, and so is the child.
func planRead(p *Program, fd int) {
	p.call("wait for the creating process", unix.SYS_READ, imm(fd), p.scratch(8), imm(1)).expect(1)
}

// planPhase tells the host that phase n is reached.
func planPhase(p *Program, fd, n int) {
	p.call("report to the creating process", unix.SYS_WRITE, imm(fd), p.words(uint64(n), 0), imm(reportBytes)).
		expect(reportBytes)
}

// Phases that a child reports.
const (
	phaseHooks = 1 // at the hook point, before pivot_root
	phaseReady = 2 // set up, waiting for start
)

func planHostPoint(p *Program, s *createState) {
	if s.HookPoint {
		planPhase(p, s.SyncFD, phaseHooks)
	}
	planRead(p, s.SyncFD)
	planListenerState(p, &s.Process, s.SyncFD)
}

// planListenerState takes what a seccomp listener will be told of this process; the host knows the number under which it
// sees it, the process does not.
func planListenerState(p *Program, in *Process, syncFD int) {
	if in.ListenerFD == None {
		return
	}
	in.listenerState = p.scratch(in.ListenerBytes)
	p.call("read state for the seccomp listener", unix.SYS_READ, imm(syncFD), in.listenerState, imm(in.ListenerBytes)).expect(in.ListenerBytes)
}

func planWaitStart(p *Program, s *createState) {
	if s.ListenFD == None {
		if s.Held {
			planPhase(p, s.SyncFD, phaseReady)
		}
		// The creating process stays, and says when over the socket that it holds.
		planRead(p, s.SyncFD)
		return
	}
	planPhase(p, s.SyncFD, phaseReady)
	again := p.here()
	conn := p.cell(0)
	p.call("wait for start", unix.SYS_ACCEPT4, imm(s.ListenFD), imm(0), imm(0), imm(unix.SOCK_CLOEXEC)).into(conn)
	// A caller that connects and dies says nothing (0 bytes): wait for the next one.
	told := &Label{}
	p.call("wait for start", unix.SYS_READ, val(conn), p.scratch(8), imm(1)).expect(1).then(told).orElse(nil)
	p.call("close connection", unix.SYS_CLOSE, val(conn)).then(again)
	p.place(told)
	// From here on errors go to whoever started the container; its end of file tells of a successful execve.
	p.call("take over start's connection", unix.SYS_DUP3, val(conn), imm(s.SyncFD), imm(unix.O_CLOEXEC))
	p.call("close listening socket", unix.SYS_CLOSE, imm(s.ListenFD))
}

func planHostname(p *Program, s *createState) {
	if s.Hostname != "" {
		p.call("set hostname", unix.SYS_SETHOSTNAME, p.str(s.Hostname), imm(len(s.Hostname)))
	}
	if s.Domainname != "" {
		p.call("set domainname", unix.SYS_SETDOMAINNAME, p.str(s.Domainname), imm(len(s.Domainname)))
	}
}

func planTimeNamespace(p *Program, s *createState) {
	if !s.NewTimeNS {
		return
	}
	p.call("create time namespace", unix.SYS_UNSHARE, imm(unix.CLONE_NEWTIME))
	fd := p.cell(None)
	if s.TimeOffsets != "" {
		p.call("open /proc/self/timens_offsets", unix.SYS_OPENAT, imm(unix.AT_FDCWD), p.str("/proc/self/timens_offsets"),
			imm(unix.O_WRONLY|unix.O_CLOEXEC)).into(fd)
		p.call("set linux.timeOffsets", unix.SYS_WRITE, val(fd), p.str(s.TimeOffsets), imm(len(s.TimeOffsets))).
			expect(len(s.TimeOffsets))
		p.call("close timens_offsets", unix.SYS_CLOSE, val(fd))
	}
	// unshare(2) moves only children; entering it needs setns(2).
	p.call("open new time namespace", unix.SYS_OPENAT, imm(unix.AT_FDCWD), p.str("/proc/self/ns/time_for_children"),
		imm(unix.O_RDONLY|unix.O_CLOEXEC)).into(fd)
	p.call("enter time namespace", unix.SYS_SETNS, val(fd), imm(unix.CLONE_NEWTIME))
	p.call("close time namespace", unix.SYS_CLOSE, val(fd))
}

func planCgroupNamespace(p *Program, s *createState) {
	if s.NewCgroupNS {
		p.call("create cgroup namespace", unix.SYS_UNSHARE, imm(unix.CLONE_NEWCGROUP))
	}
	for i := range s.Mounts {
		if s.Mounts[i].Cgroup {
			planMount(p, s, &s.Mounts[i])
		}
	}
	for _, path := range s.Sealed {
		fd := p.cell(None)
		planOpen(p, "open mount "+path, val(s.root), relative(path), unix.O_PATH, inRoot).into(fd)
		planSetattr(p, "make mount "+path+" read-only", val(fd), "", false, rootfs.Attr{Set: unix.MOUNT_ATTR_RDONLY}, 0)
		p.call("close mount", unix.SYS_CLOSE, val(fd))
	}
}

func planSysctls(p *Program, s *createState) {
	if len(s.Sysctls) == 0 {
		return
	}
	if s.proc == 0 {
		s.proc = p.cell(None)
		planFilesystem(p, "private proc", "proc", nil, 0, s.proc)
	}
	fd := p.cell(None)
	for _, c := range s.Sysctls {
		// CVE-2025-52881: only this instance of proc, no symlink and no mount in between.
		planOpen(p, "open sysctl "+c.Key, val(s.proc), "sys/"+c.Key, unix.O_WRONLY,
			unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_XDEV).into(fd)
		p.call("set linux.sysctl "+c.Key, unix.SYS_WRITE, val(fd), p.str(c.Value), imm(len(c.Value)))
		p.call("close sysctl", unix.SYS_CLOSE, val(fd))
	}
}

// planOpen appends openat2(2); O_CLOEXEC is added.
func planOpen(p *Program, what string, dir Arg, path string, flags, resolve uint64) op {
	return planOpenMode(p, what, dir, path, flags, 0, resolve)
}

func planOpenMode(p *Program, what string, dir Arg, path string, flags, mode, resolve uint64) op {
	how := p.words(flags|unix.O_CLOEXEC, mode, resolve)
	// EAGAIN: something on the host was renamed or mounted while a ".." was resolved, and the kernel could not tell
	// whether it led out. That is nobody's fault, and busy hosts mount all the time.
	return p.call(what, unix.SYS_OPENAT2, dir, p.str(path), how, imm(24)).again()
}
