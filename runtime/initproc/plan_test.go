package initproc

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// dockerProcess is what Docker asks of a process, under the agent profile.
func dockerProcess() Process {
	return Process{
		Args: []string{"sh", "-c", "echo hello"}, Env: []string{"PATH=/usr/bin:/bin", "HOME=/root"},
		Programs: Programs("sh", []string{"PATH=/usr/bin:/bin"}), Cwd: "/work", UID: 1000, GID: 1000, Groups: []uint32{10, 50},
		Umask: 0o022, Caps: &CapSets{Bounding: 0xa80425fb, Effective: 0xa80425fb, Permitted: 0xa80425fb},
		Rlimits: []Rlimit{{Resource: unix.RLIMIT_NOFILE, Cur: 1024, Max: 4096}}, NoNewPrivs: true,
		Seccomp: [][]byte{make([]byte, 80), make([]byte, 160)},
		Landlock: &Landlock{HandledFS: 0xffff, HandledNet: 3, Scoped: 1, Paths: []LandlockPath{
			{Path: "/", Access: 0xfff}, {Path: "/dev/tty", Access: 0xffff, FileAccess: 7, Optional: true},
		}, Ports: []LandlockPort{{Port: 443, Access: 2}}},
		ListenerFD: None, ConsoleFD: None,
	}
}

// dockerCreate is the first process of a container as Docker 20.10 asks for it.
func dockerCreate() *Create {
	fs := func(kind, dest string, attr uint64, o ...rootfs.Option) Mount {
		return Mount{TreeFD: None, Exists: true, Target: dest, Mount: rootfs.Mount{
			Destination: dest, Type: kind, Source: kind, Options: o, Attr: rootfs.Attr{Set: attr},
		}}
	}
	const secure = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NODEV
	cgroup := fs("cgroup", "/sys/fs/cgroup/memory", secure|unix.MOUNT_ATTR_RDONLY, rootfs.Option{Key: "memory", Flag: true})
	cgroup.Cgroup = true
	missing := fs("mqueue", "/dev/mqueue", secure)
	missing.Exists = false
	return &Create{
		Process: dockerProcess(), SyncFD: 3, ListenFD: 4, RootFD: 5, RootPath: "/var/lib/docker/overlay2/x/merged",
		NewCgroupNS: true, Propagation: unix.MS_SLAVE, PropagationRec: true, Hostname: "box", Keyring: "_ses.box",
		Mounts: []Mount{
			fs("proc", "/proc", secure), fs("tmpfs", "/dev", unix.MOUNT_ATTR_NOSUID, rootfs.Option{Key: "mode", Value: "755"}),
			fs("devpts", "/dev/pts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, rootfs.Option{Key: "newinstance", Flag: true}),
			missing, fs("sysfs", "/sys", secure|unix.MOUNT_ATTR_RDONLY), cgroup,
			{TreeFD: 6, IsFile: true, Target: "/run/resolv.conf", Mount: rootfs.Mount{
				Destination: "/etc/resolv.conf", Bind: true, Recursive: true, Type: "bind", Source: "/var/lib/docker/resolv.conf",
				Propagation: unix.MS_PRIVATE, PropagationRec: true,
			}},
			{TreeFD: 7, Exists: true, Target: "/work", Mount: rootfs.Mount{
				Destination: "/work", Bind: true, Type: "bind", Source: "/home/me",
				Attr: rootfs.Attr{Set: unix.MOUNT_ATTR_RDONLY}, RecAttr: rootfs.Attr{Set: unix.MOUNT_ATTR_NOSUID},
			}},
		},
		Devices: []Device{
			{Path: "/dev/null", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 3, TreeFD: None},
			{Path: "/dev/net/tun", Mode: unix.S_IFCHR | 0o600, Major: 10, Minor: 200, UID: 5, TreeFD: None},
		},
		DevLinks: true, KcoreLink: true, NullFD: 8, MaskedPaths: []string{"/proc/kcore", "/sys/firmware"}, ReadonlyPaths: []string{"/proc/sys"},
		Sealed: []string{"/sys/fs/cgroup"}, Sysctls: []Sysctl{{"net/ipv4/ip_forward", "1"}}, HookPoint: true,
	}
}

// fullExec is an exec with everything on.
func fullExec() *Exec {
	in := &Exec{
		Process: dockerProcess(), SyncFD: 4, SetRootIDs: true, Keyring: "_ses.box",
		Join:    []Join{{FD: 5, Flag: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUSER}},
		Cgroups: []Cgroup{{FD: 7, Path: "/sys/fs/cgroup/pids/box"}, {FD: 8, Path: "/sys/fs/cgroup/systemd/box", Optional: true}},
	}
	in.Terminal, in.ConsoleFD, in.Rows, in.Columns = true, 6, 24, 80
	in.ApparmorProfile, in.SelinuxLabel = "docker-default", "system_u:system_r:container_t:s0"
	in.Scheduler = &Scheduler{Policy: 3, Nice: 5}
	in.IOPriority, in.Personality, in.Affinity = new(2<<13), new(uint64(8)), []byte{3, 0, 0, 0, 0, 0, 0, 0}
	in.Caps.Ambient, in.Caps.Inheritable = 1<<unix.CAP_NET_BIND_SERVICE, 1<<unix.CAP_NET_BIND_SERVICE
	in.PreserveFDs = 1
	return in
}

// The whole of what a child does, to be read in a review.
func TestProgramGolden(t *testing.T) {
	for name, p := range map[string]*Program{
		"create-docker": PlanCreate(dockerCreate()),
		"exec-full":     PlanExec(fullExec()),
	} {
		if err := p.link(); err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", name+".golden")
		if os.Getenv(emulatorEnv) != "" {
			continue // system calls have the names of another architecture's table
		}
		if *update {
			if err := os.WriteFile(golden, []byte(p.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.String(); got != string(want) {
			t.Errorf("the program is not that of %s (-update rewrites it, then review the diff):\n%s", golden, firstDifference(got, string(want)))
		}
		if strings.Contains(p.String(), "syscall_") {
			t.Errorf("%s: a system call without a name", name)
		}
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			return fmt.Sprintf("line %d: %s", i+1, g[i])
		}
	}
	return fmt.Sprintf("line %d is missing", len(g)+1)
}

// The same input gives the same program: it can be compared, cached and reviewed.
func TestPlanIsDeterministic(t *testing.T) {
	if a, b := PlanCreate(dockerCreate()), PlanCreate(dockerCreate()); string(a.table) != string(b.table) || string(a.ro) != string(b.ro) {
		t.Error("create")
	}
	if a, b := PlanExec(fullExec()), PlanExec(fullExec()); string(a.table) != string(b.table) || string(a.ro) != string(b.ro) {
		t.Error("exec")
	}
}

// TestPlanInvariants follows every path through programs of random input, see walk.
func TestPlanInvariants(t *testing.T) {
	rounds := 300
	if os.Getenv(emulatorEnv) != "" {
		rounds = 20
	}
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 1))
		create, exec := randomCreate(r), randomExec(r)
		for name, p := range map[string]*Program{"create": PlanCreate(create), "exec": PlanExec(exec)} {
			in := &create.Process
			if name == "exec" {
				in = &exec.Process
			}
			if errs := walk(p, in); len(errs) > 0 {
				t.Fatalf("%s of seed %d:\n  %s\n%s", name, seed, strings.Join(errs, "\n  "), p)
			}
		}
	}
}

func randomProcess(r *rand.Rand) Process {
	in := dockerProcess()
	yes := func() bool { return r.IntN(2) == 0 }
	in.NoNewPrivs = yes()
	if yes() {
		in.Landlock = nil
	}
	if yes() {
		in.Seccomp = in.Seccomp[:r.IntN(3)]
	}
	if yes() {
		in.Caps = nil
	}
	if yes() {
		in.Groups, in.Umask, in.UID, in.GID = nil, 0, 0, 0
	}
	if yes() {
		in.ApparmorProfile = "x"
	}
	if yes() {
		in.SelinuxLabel = "y"
	}
	if yes() {
		in.Args, in.Programs = []string{"/bin/x"}, Programs("/bin/x", nil)
	} else {
		in.Programs = Programs("x", []string{"PATH=" + strings.Repeat("/a:", r.IntN(5)) + "/b"})
	}
	in.PreserveFDs = r.IntN(3)
	if yes() {
		in.Scheduler, in.IOPriority, in.Personality, in.Affinity = &Scheduler{}, new(1), new(uint64(0)), []byte{1}
	}
	return in
}

func randomCreate(r *rand.Rand) *Create {
	in := dockerCreate()
	yes := func() bool { return r.IntN(2) == 0 }
	in.Process = randomProcess(r)
	r.Shuffle(len(in.Mounts), func(i, j int) { in.Mounts[i], in.Mounts[j] = in.Mounts[j], in.Mounts[i] })
	in.Mounts = in.Mounts[:r.IntN(len(in.Mounts)+1)]
	for i := range in.Mounts {
		in.Mounts[i].Exists = yes()
		in.Mounts[i].IsFile = yes()
	}
	for i := range in.Devices {
		if yes() {
			in.Devices[i].TreeFD = 20 + i
		}
	}
	if in.Terminal = yes(); in.Terminal {
		in.ConsoleFD = 9
	}
	if yes() {
		in.ListenFD = None
	}
	if yes() {
		in.Devices, in.DevLinks = nil, false
	}
	if yes() {
		in.MaskedPaths, in.ReadonlyPaths, in.Sealed = nil, nil, nil
	}
	in.Propagation = []uint64{unix.MS_PRIVATE, unix.MS_SLAVE, unix.MS_SHARED, unix.MS_UNBINDABLE}[r.IntN(4)]
	in.HookPoint, in.NoPivot, in.ReadonlyRoot, in.NewCgroupNS, in.NewTimeNS = yes(), yes(), yes(), yes(), yes()
	if in.NewTimeNS && yes() {
		in.TimeOffsets = "monotonic 1 0\n"
	}
	if yes() {
		in.Sysctls = nil
	}
	in.Join = []Join{{21, unix.CLONE_NEWNET}, {22, unix.CLONE_NEWUSER}}[:r.IntN(3)]
	in.SetRootIDs = len(in.Join) == 2
	return in
}

func randomExec(r *rand.Rand) *Exec {
	in := fullExec()
	terminal := in.ConsoleFD
	in.Process = randomProcess(r)
	if in.Terminal = r.IntN(2) == 0; in.Terminal {
		in.ConsoleFD = terminal
	}
	in.SetRootIDs = r.IntN(2) == 0
	return in
}

// What a path through a program has done so far.
const (
	didNNP = 1 << iota
	didClose
	didIDs
	didCaps
	didUndumpable
	didLandlock
	didListen
	didJoined
	didSeccomp // one bit for each filter from here
)

// walker follows the edges of a program.
type walker struct {
	p    *Program
	in   *Process
	errs map[string]bool
	seen map[[2]int]bool
	// open are the cells that certainly hold a descriptor before an operation: the intersection over all paths to it.
	open []map[uint64]bool
}

// walk checks what must hold on every path through p: jumps stay inside; what closes, restricts and drops comes before
// execve and in the right order; every descriptor is made close-on-exec; no cell is used before it is filled or after
// its descriptor was closed.
func walk(p *Program, in *Process) []string {
	w := &walker{p: p, in: in, errs: map[string]bool{}, seen: map[[2]int]bool{}, open: make([]map[uint64]bool, len(p.meta))}
	if err := p.link(); err != nil {
		return []string{err.Error()}
	}
	w.order(0, 0)
	w.cells()
	for i := range p.meta {
		w.closeOnExec(i)
	}
	var out []string
	for e := range w.errs {
		out = append(out, e)
	}
	return out
}

func (w *walker) fail(i int, format string, args ...any) {
	w.errs[fmt.Sprintf("%d (%s): ", i, w.p.meta[i].what)+fmt.Sprintf(format, args...)] = true
}

// next returns where operation i can go on; -1 is nowhere.
func (w *walker) next(i int) (ok, other int) {
	raw := op{w.p, i}.bytes()
	ok, other = int(binary.NativeEndian.Uint32(raw[offOK:])), -1
	if raw[offTolerate] != 0 || raw[offFlags]&flagJump != 0 {
		other = int(binary.NativeEndian.Uint32(raw[offOther:]))
	}
	if name := (op{w.p, i}).name(); name == "execve" || name == "exit_group" {
		ok = -1
	}
	if (op{w.p, i}).name() == "check" && raw[offTolerate] != 0 && raw[offFlags]&flagJump == 0 {
		w.fail(i, "a check that tolerates an errno has no effect")
	}
	for _, to := range []int{ok, other} {
		if to >= len(w.p.meta) {
			w.fail(i, "goes on at %d of %d", to, len(w.p.meta))
		}
	}
	return ok, other
}

func (w *walker) order(i, done int) {
	for {
		if i < 0 || i >= len(w.p.meta) || w.seen[[2]int{i, done}] {
			return
		}
		w.seen[[2]int{i, done}] = true
		w.judge(i, done)
		ok, other := w.next(i)
		w.order(other, done)
		i, done = ok, done|w.effect(i, done)
	}
}

// effect is what an operation's success adds.
func (w *walker) effect(i, done int) int {
	o := op{w.p, i}
	switch o.name() {
	case "prctl":
		switch o.arg(0).value {
		case unix.PR_SET_NO_NEW_PRIVS:
			return didNNP
		case unix.PR_SET_DUMPABLE:
			return didUndumpable
		}
	case "close_range":
		return didClose
	case "setresuid":
		if w.p.meta[i].step == "process" { // not root's ids in a user namespace that was joined
			return didIDs
		}
	case "capset":
		return didCaps
	case "landlock_restrict_self":
		return didLandlock
	case "setns":
		return didJoined
	case "accept4":
		return didListen
	case "seccomp":
		bit := didSeccomp
		for done&bit != 0 {
			bit <<= 1
		}
		return bit
	}
	return 0
}

func (w *walker) judge(i, done int) {
	o := op{w.p, i}
	need := func(bits int, why string) {
		if done&bits != bits {
			w.fail(i, "reached without %s", why)
		}
	}
	switch name := o.name(); name {
	case "clone":
		need(didUndumpable|didJoined, "hiding and leaving the host's namespaces")
	case "setns", "unshare", "openat2", "openat", "open_tree", "mknodat":
		need(didUndumpable, "hiding from ptrace (CVE-2016-9962)")
	case "seccomp":
		if w.in.NoNewPrivs {
			need(didNNP, "no_new_privs")
			need(didClose, "closing descriptors")
			if w.in.Landlock != nil {
				need(didLandlock, "Landlock")
			}
		} else if done&didIDs != 0 {
			w.fail(i, "a filter without no_new_privs after the change of ids")
		}
	case "landlock_restrict_self":
		if w.in.NoNewPrivs {
			need(didIDs|didNNP, "the change of ids and no_new_privs")
		} else if done&didIDs != 0 {
			w.fail(i, "Landlock without no_new_privs after the change of ids")
		}
	case "execve":
		need(didClose|didIDs|didUndumpable, "closing descriptors, changing ids and hiding")
		if w.in.Caps != nil {
			need(didCaps, "capabilities")
		}
		if w.in.NoNewPrivs {
			need(didNNP, "no_new_privs")
		}
		if w.in.Landlock != nil {
			need(didLandlock, "Landlock")
		}
		for n := range w.in.Seccomp {
			need(didSeccomp<<n, fmt.Sprintf("filter %d", n))
		}
	}
	if done&didSeccomp != 0 && w.in.NoNewPrivs && o.name() != "execve" && o.name() != "seccomp" {
		w.fail(i, "a call that the container's filter may refuse")
	}
}

// closeOnExec checks the flags of every call that makes a descriptor.
func (w *walker) closeOnExec(i int) {
	o := op{w.p, i}
	has := func(n int, bit uint64) {
		if o.arg(n).value&bit == 0 {
			w.fail(i, "the descriptor survives execve")
		}
	}
	switch o.name() {
	case "openat2":
		how := o.arg(2)
		if flags := binary.NativeEndian.Uint64(w.p.ro[how.value:]); flags&unix.O_CLOEXEC == 0 {
			w.fail(i, "the descriptor survives execve")
		}
	case "openat":
		has(2, unix.O_CLOEXEC)
	case "open_tree":
		has(2, unix.OPEN_TREE_CLOEXEC)
	case "fsopen":
		has(1, unix.FSOPEN_CLOEXEC)
	case "fsmount":
		has(1, unix.FSMOUNT_CLOEXEC)
	case "accept4":
		has(3, unix.SOCK_CLOEXEC)
	case "fcntl":
		if o.arg(1).value != unix.F_DUPFD_CLOEXEC {
			w.fail(i, "the descriptor survives execve")
		}
	case "dup3":
		if o.arg(1).value > 2 || o.arg(1).kind == argCell {
			has(2, unix.O_CLOEXEC)
		}
	case "ioctl":
		if o.arg(1).value == unix.TIOCGPTPEER {
			has(2, unix.O_CLOEXEC)
		}
	}
}

// cells finds uses of cells that hold no descriptor on some path, by data flow: what is open before an operation is
// what is open after all those that lead to it.
func (w *walker) cells() {
	start := map[uint64]bool{}
	for at := 24; at+4 <= len(w.p.rw); at += 4 {
		if v := int32(binary.NativeEndian.Uint32(w.p.rw[at:])); v >= 3 { //nolint:gosec // the bits
			start[uint64(at)] = true // donated; data that looks like it does no harm
		}
	}
	w.open[0] = start
	for todo := []int{0}; len(todo) > 0; {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		o := op{w.p, i}
		after := map[uint64]bool{}
		for c := range w.open[i] {
			after[c] = true
		}
		if o.name() == "close" && o.arg(0).kind == argCell {
			delete(after, o.arg(0).value)
		}
		filled := after
		if dst := binary.NativeEndian.Uint64(o.bytes()[offDst:]); dst != 0 {
			filled = map[uint64]bool{dst - rwBase: true}
			for c := range after {
				filled[c] = true
			}
		}
		ok, other := w.next(i)
		for _, edge := range []struct {
			to   int
			open map[uint64]bool
		}{{ok, filled}, {other, after}} {
			if edge.to < 0 || edge.to >= len(w.p.meta) {
				continue
			}
			if w.meet(edge.to, edge.open) {
				todo = append(todo, edge.to)
			}
		}
	}
	for i := range w.p.meta {
		if w.open[i] == nil {
			w.fail(i, "is never reached")
			continue
		}
		for n := range 6 {
			if a := (op{w.p, i}).arg(n); a.kind == argCell && !w.open[i][a.value] {
				w.fail(i, "argument %d, cell %d, may hold no open descriptor", n, a.value)
			}
		}
	}
}

// meet lowers what is open before an operation, and reports whether that changed anything.
func (w *walker) meet(to int, open map[uint64]bool) bool {
	if w.open[to] == nil {
		w.open[to] = map[uint64]bool{}
		for c := range open {
			w.open[to][c] = true
		}
		return true
	}
	changed := false
	for c := range w.open[to] {
		if !open[c] {
			delete(w.open[to], c)
			changed = true
		}
	}
	return changed
}

func TestPlanPrograms(t *testing.T) {
	for _, c := range []struct {
		name string
		env  []string
		want string
	}{
		{"/bin/sh", []string{"PATH=/x"}, "/bin/sh"},
		{"./sh", nil, "./sh"},
		{"sh", nil, "./sh"},
		{"sh", []string{"PATH="}, "./sh"},
		{"sh", []string{"PATH=/a:/b"}, "/a/sh /b/sh"},
		{"sh", []string{"PATH=/a", "PATH=/b"}, "/b/sh"},
		{"sh", []string{"PATH=:/b:"}, "./sh /b/sh ./sh"},
		{"sh", []string{"XPATH=/a", "PATHX=/a"}, "./sh"},
	} {
		if got := strings.Join(Programs(c.name, c.env), " "); got != c.want {
			t.Errorf("Programs(%q, %q) = %q, want %q", c.name, c.env, got, c.want)
		}
	}
}

// The table that start reads back names what failed, by the same index as the program.
func TestPlanStartTable(t *testing.T) {
	p := PlanCreate(dockerCreate())
	table := p.StartTable()
	if table.First == 0 || table.First+len(table.What) != len(p.meta) {
		t.Fatalf("first %d, %d names, %d operations", table.First, len(table.What), len(p.meta))
	}
	back := table.program()
	for i := table.First; i < len(p.meta); i++ {
		if back.meta[i].what != p.meta[i].what {
			t.Fatalf("operation %d is %q, want %q", i, back.meta[i].what, p.meta[i].what)
		}
	}
	if before := p.meta[table.First-1].step; before != "wait for start" || p.meta[table.First].step != "execute" {
		t.Errorf("the table begins behind step %q", before)
	}
}
