package initproc

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// planProcess is the common part of the first process and of an exec, up to the point at which create waits.
func planProcess(p *Program, in *Process) {
	planSignals(p, in)
	planScheduling(p, in)
	for _, r := range in.Rlimits {
		p.call(fmt.Sprintf("set process.rlimits[%d]", r.SpecIndex), unix.SYS_PRLIMIT64, imm(0), imm(r.Resource),
			p.words(r.Cur, r.Max), imm(0))
	}
	planLabels(p, in)
	planOwnPipes(p, in)
	// Before the ids change: afterwards the paths of the ruleset might not be reachable.
	planLandlockRuleset(p, in)
	cwd := planEnterCwd(p, in)
	if !in.NoNewPrivs {
		// Without no_new_privs Landlock and filters need CAP_SYS_ADMIN, which the next operations give away; with it,
		// they come last, so that they need not allow what stands between. Landlock restricts nothing of that: it leaves
		// chdir and access alone.
		planLandlockRestrict(p, in)
		planCloseRange(p, in)
		planSeccomp(p, in)
	}
	planIDs(p, in)
	planEnterCwdAsUser(p, in, cwd)
	planPersonality(p, in)
	if in.NoNewPrivs {
		p.call("set no_new_privs", unix.SYS_PRCTL, imm(unix.PR_SET_NO_NEW_PRIVS), imm(1), imm(0), imm(0), imm(0))
	}
	planLookPath(p, in)
	if in.Umask != 0 {
		p.call("set process.user.umask", unix.SYS_UMASK, imm(int(in.Umask)))
	}
}

// planOwnPipes gives the user the pipes that are its standard streams, as runc does: by the names /dev/stdout and /dev/stderr,
// which images of servers have for their logs, they are opened anew. Files and terminals of the host keep their owner. A
// pipe whose owner has no id in the user namespace stays as it is.
func planOwnPipes(p *Program, in *Process) {
	if in.Terminal || in.UID == 0 {
		return
	}
	for fd := range 3 {
		if in.PipeStdio&(1<<fd) != 0 {
			p.call("set owner of standard stream", unix.SYS_FCHOWN, imm(fd), imm(int(in.UID)), imm(-1)).ignore(unix.EROFS, unix.EINVAL, unix.EPERM)
		}
	}
}

// planSignals undoes what nohup(1), or a shell for what it runs in the background, has done: a shell in the container could
// not even trap a signal that is ignored when it starts.
func planSignals(p *Program, in *Process) {
	const sigsetBytes, sigactionBytes = 8, 32 // of the kernel's own structures on 64-bit machines
	for _, s := range in.DefaultSignals {
		p.call(fmt.Sprintf("set default action of signal %d", s), unix.SYS_RT_SIGACTION, imm(s), p.bytes(make([]byte, sigactionBytes)), imm(0), imm(sigsetBytes))
	}
}

// planExecute is the end: Landlock, descriptors, seccomp, execve.
func planExecute(p *Program, in *Process) {
	if in.NoNewPrivs {
		planLandlockRestrict(p, in)
		planCloseRange(p, in)
		planSeccomp(p, in)
	}
	argv, env := p.vector(in.Args), p.vector(in.Env)
	what := "exec " + quote(in.Args[0])
	for _, tolerant := range passes(in.Programs) {
		for i, program := range in.Programs {
			o := p.call(what, unix.SYS_EXECVE, p.str(program), argv, env)
			switch {
			case tolerant:
				o.ignore(unix.ENOENT, unix.ENOTDIR, unix.EACCES)
			case i < len(in.Programs)-1:
				o.ignore(unix.ENOENT, unix.ENOTDIR)
			}
		}
	}
}

// planLandlockRestrict puts the ruleset in force.
func planLandlockRestrict(p *Program, in *Process) {
	if in.Landlock != nil {
		p.call("restrict by Landlock", unix.SYS_LANDLOCK_RESTRICT_SELF, val(in.landlockFD), imm64(in.Landlock.RestrictFlags))
	}
}

// planCloseRange marks whatever else was opened or inherited, so that it ends at execve (CVE-2024-21626, CVE-2019-5736).
// Before the filters, which may be older than the call; what is opened later is marked from the beginning.
func planCloseRange(p *Program, in *Process) {
	p.call("close descriptors", unix.SYS_CLOSE_RANGE, imm(3+in.PreserveFDs), imm64(1<<32-1), imm(unix.CLOSE_RANGE_CLOEXEC))
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

// passes over the programs to try, as execvp(3) does it: one that can't be executed is passed over for a later one that
// can, and only if there is none it is what the error is about. The values say whether EACCES is tolerated.
func passes(programs []string) []bool {
	if len(programs) == 1 {
		return []bool{false}
	}
	return []bool{true, false}
}

// planLookPath fails early, at create, when no program can be executed: engines expect "not found" there.
func planLookPath(p *Program, in *Process) {
	found := &Label{}
	what := "exec " + quote(in.Args[0])
	if !in.NoNewPrivs && len(in.Seccomp) > 0 {
		// A filter that was written before Linux 5.8 refuses faccessat2; then execve tells.
		p.call("look for the program", unix.SYS_FACCESSAT2, imm(unix.AT_FDCWD), p.str("/"), imm(unix.F_OK), imm(unix.AT_EACCESS)).
			orElse(found, unix.EPERM, unix.ENOSYS, unix.EACCES)
	}
	for _, tolerant := range passes(in.Programs) {
		for i, program := range in.Programs {
			// faccessat2 with AT_EACCESS judges by the ids that execve will have.
			o := p.call(what, unix.SYS_FACCESSAT2, imm(unix.AT_FDCWD), p.str(program), imm(unix.X_OK), imm(unix.AT_EACCESS)).then(found)
			switch {
			case tolerant:
				o.orElse(nil, unix.ENOENT, unix.ENOTDIR, unix.EACCES)
			case i < len(in.Programs)-1:
				o.orElse(nil, unix.ENOENT, unix.ENOTDIR)
			}
		}
	}
	p.place(found)
}

// planEnterCwd enters the working directory with the caller's privileges, since it may be closed to the user, and before
// the filters, which may refuse getcwd. It returns memory that begins with "/" once the directory is entered.
func planEnterCwd(p *Program, in *Process) Arg {
	cwd, asUser := p.scratch(unix.PathMax), &Label{}
	// It may be closed to root (NFS with root_squash).
	p.call("enter process.cwd "+quote(in.Cwd), unix.SYS_CHDIR, p.str(in.Cwd)).orElse(asUser, unix.EACCES, unix.EPERM)
	planCheckCwd(p, in, cwd)
	p.place(asUser)
	return cwd
}

// planEnterCwdAsUser enters the working directory if that could not be done before.
func planEnterCwdAsUser(p *Program, in *Process, cwd Arg) {
	done := &Label{}
	p.check("entered?", cwd, 0xff, '/', unix.EACCES).then(done).orElse(nil)
	p.call("enter process.cwd "+quote(in.Cwd), unix.SYS_CHDIR, p.str(in.Cwd))
	planCheckCwd(p, in, cwd)
	p.place(done)
}

// planCheckCwd refuses a working directory outside of the root, which shows as "(unreachable)..." (CVE-2024-21626).
func planCheckCwd(p *Program, in *Process, cwd Arg) {
	p.call("read working directory", unix.SYS_GETCWD, cwd, imm(unix.PathMax))
	p.check("process.cwd "+quote(in.Cwd)+" is outside of the container", cwd, 0xff, '/', unix.EXDEV)
}

func planIDs(p *Program, in *Process) {
	if in.Caps != nil {
		for c := range unix.CAP_LAST_CAP + 1 {
			if in.Caps.Bounding&(1<<c) == 0 {
				// EINVAL: this kernel's last capability is below.
				p.call("drop from bounding set", unix.SYS_PRCTL, imm(unix.PR_CAPBSET_DROP), imm(c)).ignore(unix.EINVAL)
			}
		}
		p.call("keep capabilities over the change of ids", unix.SYS_PRCTL, imm(unix.PR_SET_KEEPCAPS), imm(1))
	}
	groups := make([]byte, 0, 4*len(in.Groups))
	for _, g := range in.Groups {
		groups = binary.NativeEndian.AppendUint32(groups, g)
	}
	o := p.call("set process.user.additionalGids", unix.SYS_SETGROUPS, imm(len(in.Groups)), p.bytes(groups))
	if len(in.Groups) == 0 {
		// A user namespace made without privilege denies setgroups, and then there is nothing to give up either.
		o.ignore(unix.EPERM)
	}
	p.call(fmt.Sprintf("set process.user.gid %d", in.GID), unix.SYS_SETRESGID, imm(int(in.GID)), imm(int(in.GID)), imm(int(in.GID)))
	p.call(fmt.Sprintf("set process.user.uid %d", in.UID), unix.SYS_SETRESUID, imm(int(in.UID)), imm(int(in.UID)), imm(int(in.UID)))
	if in.Caps != nil {
		planCapset(p, in.Caps)
	}
}

func planCapset(p *Program, c *CapSets) {
	const version3 = 0x20080522
	lo := func(v uint64) uint64 { return v & (1<<32 - 1) }
	data := p.words(
		lo(c.Effective)|lo(c.Permitted)<<32, lo(c.Inheritable)|c.Effective>>32<<32,
		c.Permitted>>32|c.Inheritable>>32<<32,
	)
	p.call("set process.capabilities", unix.SYS_CAPSET, p.words(version3), data)
	p.call("clear ambient capabilities", unix.SYS_PRCTL, imm(unix.PR_CAP_AMBIENT), imm(unix.PR_CAP_AMBIENT_CLEAR_ALL), imm(0), imm(0), imm(0))
	for bit := range unix.CAP_LAST_CAP + 1 {
		if c.Ambient&(1<<bit) != 0 {
			// EPERM: the capability is not both permitted and inheritable; runc warns and goes on.
			p.call("raise ambient capability", unix.SYS_PRCTL, imm(unix.PR_CAP_AMBIENT), imm(unix.PR_CAP_AMBIENT_RAISE), imm(bit), imm(0), imm(0)).
				ignore(unix.EPERM)
		}
	}
}

func planSeccomp(p *Program, in *Process) {
	for i, filter := range in.Seccomp {
		prog := p.scratch(16)
		p.put64(prog, uint64(len(filter)/8))
		p.point(prog.plus(8), p.bytes(filter))
		o := p.call("install seccomp filter", unix.SYS_SECCOMP, imm(unix.SECCOMP_SET_MODE_FILTER), imm64(in.SeccompFlags), prog)
		if i != in.ListenerFilter || in.ListenerFD == None {
			continue
		}
		o.set(1, imm64(in.SeccompFlags|in.ListenerFlags|unix.SECCOMP_FILTER_FLAG_NEW_LISTENER))
		listener := p.cell(None)
		o.into(listener)
		planSendFD(p, "send seccomp listener", in.ListenerFD, listener, in.listenerState, in.ListenerBytes)
	}
}

func planLandlockRuleset(p *Program, in *Process) {
	l := in.Landlock
	if l == nil {
		return
	}
	in.landlockFD = p.cell(None)
	p.call("create Landlock ruleset", unix.SYS_LANDLOCK_CREATE_RULESET, p.words(l.HandledFS, l.HandledNet, l.Scoped), imm(24), imm(0)).
		into(in.landlockFD)
	for _, r := range l.Paths {
		planLandlockPath(p, in, r)
	}
	for _, r := range l.Ports {
		p.call(fmt.Sprintf("add Landlock rule for port %d", r.Port), unix.SYS_LANDLOCK_ADD_RULE, val(in.landlockFD),
			imm(landlockRuleNetPort), p.words(r.Access, uint64(r.Port)), imm(0))
	}
}

func planLandlockPath(p *Program, in *Process, r LandlockPath) {
	next, isFile := &Label{}, &Label{}
	open := func(access uint64) (rule Arg, parent Cell, o op) {
		rule = p.scratch(16) // struct landlock_path_beneath_attr is packed: access, then the descriptor
		p.put64(rule, access)
		parent = Cell(rule.plus(8).value) //nolint:gosec // offsets in the writable data are small
		// No symlinks: what an image links /tmp to would be granted in its place.
		return rule, parent, planOpen(p, "open path of Landlock rule "+r.Path, imm(unix.AT_FDCWD), r.Path, unix.O_PATH,
			unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS).into(parent)
	}
	add := func(rule Arg, parent Cell) op {
		o := p.call("add Landlock rule "+r.Path, unix.SYS_LANDLOCK_ADD_RULE, val(in.landlockFD),
			imm(unix.LANDLOCK_RULE_PATH_BENEATH), rule, imm(0))
		p.call("close path of Landlock rule", unix.SYS_CLOSE, val(parent))
		return o
	}
	rule, parent, o := open(r.Access)
	if r.Optional {
		o.orElse(next, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES)
	}
	if r.FileAccess == r.Access || r.FileAccess == 0 {
		add(rule, parent)
		p.place(next)
		return
	}
	// EINVAL: rights that only directories have were granted on a file.
	add(rule, parent).orElse(isFile, unix.EINVAL)
	p.jump(next)
	p.place(isFile)
	p.call("close path of Landlock rule", unix.SYS_CLOSE, val(parent))
	rule, parent, _ = open(r.FileAccess)
	add(rule, parent)
	p.place(next)
}

const landlockRuleNetPort = 2

// planLabels writes the labels for AppArmor and SELinux, through an instance of proc that the image has no hand in
// (CVE-2019-16884, CVE-2025-52881).
func planLabels(p *Program, in *Process) {
	var labels [][3]string
	if in.ApparmorProfile != "" {
		labels = append(labels, [3]string{"set process.apparmorProfile", "thread-self/attr/apparmor/exec", "exec " + in.ApparmorProfile})
	}
	if in.SelinuxLabel != "" {
		labels = append(labels, [3]string{"set process.selinuxLabel", "thread-self/attr/exec", in.SelinuxLabel})
	}
	planAttributes(p, labels)
}

// planAttributes writes attributes of the process: what it is for, the file below proc, the value of each.
func planAttributes(p *Program, list [][3]string) {
	if len(list) == 0 {
		return
	}
	proc, fd := p.cell(None), p.cell(None)
	planFilesystem(p, "private proc", "proc", nil, 0, proc)
	for _, a := range list {
		what, path, value := a[0], a[1], a[2]
		planOpen(p, what, val(proc), path, unix.O_WRONLY, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV).into(fd)
		p.call(what, unix.SYS_WRITE, val(fd), p.str(value), imm(len(value)))
		p.call("close label", unix.SYS_CLOSE, val(fd))
	}
	p.call("close private proc", unix.SYS_CLOSE, val(proc))
}

func planScheduling(p *Program, in *Process) {
	if s := in.Scheduler; s != nil {
		const size = 48
		attr := p.words(size|uint64(s.Policy)<<32, s.Flags, uint64(uint32(s.Nice))|uint64(s.Priority)<<32,
			s.Runtime, s.Deadline, s.PeriodNS)
		p.call("set process.scheduler", unix.SYS_SCHED_SETATTR, imm(0), attr, imm(0))
	}
	if in.IOPriority != nil {
		const whoProcess = 1
		p.call("set process.ioPriority", unix.SYS_IOPRIO_SET, imm(whoProcess), imm(0), imm(*in.IOPriority))
	}
	if len(in.Affinity) > 0 {
		p.call("set CPU affinity", unix.SYS_SCHED_SETAFFINITY, imm(0), imm(len(in.Affinity)), p.bytes(in.Affinity))
	} else {
		// The caller may be bound to some CPUs, by systemd's CPUAffinity= for one (runc#4814). The kernel leaves of the mask
		// what the cgroup allows.
		p.call("reset CPU affinity", unix.SYS_SCHED_SETAFFINITY, imm(0), imm(len(everyCPU)), p.bytes([]byte(everyCPU))).
			ignore(unix.EINVAL, unix.EPERM)
	}
	if m := in.MemoryPolicy; m != nil {
		// The kernel takes the number of bits for one more than the last.
		p.call("set linux.memoryPolicy", unix.SYS_SET_MEMPOLICY, imm(int(m.Mode)), p.bytes(m.Nodes), imm(8*len(m.Nodes)+1))
	}
}

// everyCPU is a mask of 8,192 CPUs, the most that any architecture is built for (runc#5023 was a fixed 1,024).
var everyCPU = strings.Repeat("\xff", 1024) //nolint:gochecknoglobals // a constant

// planInitialAffinity moves an exec to CPUs of its own before it joins the container's cgroup.
func planInitialAffinity(p *Program, in *Process) {
	if len(in.InitialAffinity) > 0 {
		p.call("set process.execCPUAffinity.initial", unix.SYS_SCHED_SETAFFINITY, imm(0), imm(len(in.InitialAffinity)),
			p.bytes(in.InitialAffinity))
	}
}

func planPersonality(p *Program, in *Process) {
	if in.Personality != nil {
		p.call("set linux.personality", unix.SYS_PERSONALITY, imm64(*in.Personality))
	}
}

// Programs lists what execve may be tried on for a command's first word, as execvp(3) does it: the word itself if it
// has a slash, or else the word in each directory of the PATH in env.
func Programs(name string, env []string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	list := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			list = v // the last one wins, as for a shell
		}
	}
	var out []string
	for dir := range strings.SplitSeq(list, ":") {
		if dir == "" {
			dir = "."
		}
		out = append(out, dir+"/"+name)
	}
	return out
}
