package container

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// capabilityNames by number. Source: linux/capability.h of Linux 6.12.
var capabilityNames = []string{ //nolint:gochecknoglobals // a constant table
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN",
	"CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT",
	"CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
	"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL",
	"CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
	"CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

var rlimitNumbers = map[string]int{ //nolint:gochecknoglobals // a constant table
	"RLIMIT_CPU": 0, "RLIMIT_FSIZE": 1, "RLIMIT_DATA": 2, "RLIMIT_STACK": 3, "RLIMIT_CORE": 4, "RLIMIT_RSS": 5,
	"RLIMIT_NPROC": 6, "RLIMIT_NOFILE": 7, "RLIMIT_MEMLOCK": 8, "RLIMIT_AS": 9, "RLIMIT_LOCKS": 10,
	"RLIMIT_SIGPENDING": 11, "RLIMIT_MSGQUEUE": 12, "RLIMIT_NICE": 13, "RLIMIT_RTPRIO": 14, "RLIMIT_RTTIME": 15,
}

// defaultPath is what a command is looked up in when the environment has no PATH.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// planProcess translates a process of a spec. root is the container's root file system, or for an exec the root of a
// process in it; user data of the image is read beneath it.
func planProcess(in *specs.Process, root *os.File) (initproc.Process, error) {
	p := initproc.Process{
		Args: in.Args, Cwd: in.Cwd, UID: in.User.UID, GID: in.User.GID, Groups: in.User.AdditionalGids,
		NoNewPrivs: in.NoNewPrivileges, Terminal: in.Terminal, OOMScoreAdj: in.OOMScoreAdj,
		ApparmorProfile: in.ApparmorProfile, SelinuxLabel: in.SelinuxLabel,
		ListenerFD: initproc.None, ConsoleFD: initproc.None, Umask: 0o022,
		DefaultSignals: ignoredSignals(),
	}
	if in.SelinuxLabel != "" && !selinux() {
		return p, invalid("process.selinuxLabel", "SELinux is not in use on this machine")
	}
	if in.User.Umask != nil {
		p.Umask = *in.User.Umask
	}
	if in.ConsoleSize != nil {
		if in.ConsoleSize.Height > 65535 || in.ConsoleSize.Width > 65535 {
			return p, invalid("process.consoleSize", "larger than a terminal can be")
		}
		p.Rows, p.Columns = uint16(in.ConsoleSize.Height), uint16(in.ConsoleSize.Width) //nolint:gosec // checked
	}
	if in.OOMScoreAdj != nil && (*in.OOMScoreAdj < -1000 || *in.OOMScoreAdj > 1000) {
		return p, invalid("process.oomScoreAdj", fmt.Sprintf("%d is not between -1000 and 1000", *in.OOMScoreAdj))
	}
	p.Env = environment(in, root)
	p.Programs = initproc.Programs(in.Args[0], append([]string{defaultPath}, p.Env...))
	var err error
	if p.Caps, err = planCapabilities(in.Capabilities); err != nil {
		return p, err
	}
	if p.Rlimits, err = planRlimits(in.Rlimits); err != nil {
		return p, err
	}
	if p.Scheduler, err = planScheduler(in.Scheduler); err != nil {
		return p, err
	}
	if p.IOPriority, err = planIOPriority(in.IOPriority); err != nil {
		return p, err
	}
	return p, nil
}

func planCapabilities(in *specs.LinuxCapabilities) (*initproc.CapSets, error) {
	if in == nil {
		return &initproc.CapSets{}, nil
	}
	var out initproc.CapSets
	for _, set := range []struct {
		name string
		list []string
		mask *uint64
	}{
		{"bounding", in.Bounding, &out.Bounding},
		{"effective", in.Effective, &out.Effective},
		{"permitted", in.Permitted, &out.Permitted},
		{"inheritable", in.Inheritable, &out.Inheritable},
		{"ambient", in.Ambient, &out.Ambient},
	} {
		for i, name := range set.list {
			bit, ok := capabilityBit(name)
			if !ok {
				return nil, invalid(fmt.Sprintf("process.capabilities.%s[%d]", set.name, i), fmt.Sprintf("%q is not a capability", name))
			}
			*set.mask |= 1 << bit
		}
	}
	return &out, nil
}

func capabilityBit(name string) (int, bool) {
	name = strings.ToUpper(name)
	for i, n := range capabilityNames {
		if n == name {
			return i, true
		}
	}
	return 0, false
}

func planRlimits(in []specs.POSIXRlimit) ([]initproc.Rlimit, error) {
	var out []initproc.Rlimit
	seen := map[string]bool{}
	for i, r := range in {
		n, ok := rlimitNumbers[r.Type]
		field := fmt.Sprintf("process.rlimits[%d]", i)
		switch {
		case !ok:
			return nil, invalid(field+".type", fmt.Sprintf("%q is not a resource limit", r.Type))
		case seen[r.Type]:
			return nil, invalid(field+".type", fmt.Sprintf("%q is there twice", r.Type))
		case r.Soft > r.Hard:
			return nil, invalid(field, fmt.Sprintf("soft limit %d is above the hard limit %d", r.Soft, r.Hard))
		}
		seen[r.Type] = true
		out = append(out, initproc.Rlimit{Resource: n, Cur: r.Soft, Max: r.Hard, SpecIndex: i})
	}
	return out, nil
}

// environment returns process.env with HOME from the image's passwd file if it is missing, as engines expect.
func environment(in *specs.Process, root *os.File) []string {
	for _, e := range in.Env {
		if strings.HasPrefix(e, "HOME=") && len(e) > len("HOME=") {
			return in.Env
		}
	}
	env := make([]string, 0, len(in.Env)+1)
	for _, e := range in.Env {
		if e != "HOME=" {
			env = append(env, e)
		}
	}
	return append(env, "HOME="+homeDirectory(root, in.User.UID))
}

func writeOOMScore(pid, adj int) error {
	err := os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(strconv.Itoa(adj)), 0)
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("process.oomScoreAdj %d: lowering it needs CAP_SYS_RESOURCE: %w", adj, err)
	}
	if err != nil {
		return fmt.Errorf("process.oomScoreAdj: %w", err)
	}
	return nil
}

// maxPasswdBytes bounds what is read of an image's passwd file (CVE-2026-47262 was an unbounded one).
const maxPasswdBytes = 4 << 20

// homeDirectory looks a uid up in the image's passwd file, which is hostile: it may be missing, huge, a device or a
// symlink out of the root. "/" is the answer in doubt.
func homeDirectory(root *os.File, uid uint32) string {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(int(root.Fd()), "etc/passwd", &how)
	if err != nil {
		return "/"
	}
	f := os.NewFile(uintptr(fd), "passwd")
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "/"
	}
	want := strconv.FormatUint(uint64(uid), 10)
	lines := bufio.NewScanner(io.LimitReader(f, maxPasswdBytes))
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) >= 6 && fields[2] == want {
			if home := fields[5]; path.IsAbs(home) && !strings.ContainsRune(home, 0) {
				return home
			}
			return "/"
		}
	}
	return "/"
}

var schedulerPolicies = map[specs.LinuxSchedulerPolicy]uint32{ //nolint:gochecknoglobals // a constant table
	specs.SchedOther: 0, specs.SchedFIFO: 1, specs.SchedRR: 2, specs.SchedBatch: 3, specs.SchedISO: 4, specs.SchedIdle: 5,
	specs.SchedDeadline: 6,
}

var schedulerFlags = map[specs.LinuxSchedulerFlag]uint64{ //nolint:gochecknoglobals // a constant table
	specs.SchedFlagResetOnFork: 1, specs.SchedFlagReclaim: 2, specs.SchedFlagDLOverrun: 4, specs.SchedFlagKeepPolicy: 8,
	specs.SchedFlagKeepParams: 0x10, specs.SchedFlagUtilClampMin: 0x20, specs.SchedFlagUtilClampMax: 0x40,
}

func planScheduler(in *specs.Scheduler) (*initproc.Scheduler, error) {
	if in == nil {
		return nil, nil //nolint:nilnil // no scheduler asked for
	}
	policy, ok := schedulerPolicies[in.Policy]
	if !ok {
		return nil, invalid("process.scheduler.policy", fmt.Sprintf("%q is not a policy", in.Policy))
	}
	out := &initproc.Scheduler{
		Policy: policy, Nice: in.Nice, Priority: uint32(in.Priority), //nolint:gosec // the kernel judges the bits
		Runtime: in.Runtime, Deadline: in.Deadline, PeriodNS: in.Period,
	}
	for i, f := range in.Flags {
		bit, ok := schedulerFlags[f]
		if !ok {
			return nil, invalid(fmt.Sprintf("process.scheduler.flags[%d]", i), fmt.Sprintf("%q is not a flag", f))
		}
		out.Flags |= bit
	}
	return out, nil
}

func planIOPriority(in *specs.LinuxIOPriority) (*int, error) {
	if in == nil {
		return nil, nil //nolint:nilnil // no priority asked for
	}
	class, ok := map[specs.IOPriorityClass]int{specs.IOPRIO_CLASS_RT: 1, specs.IOPRIO_CLASS_BE: 2, specs.IOPRIO_CLASS_IDLE: 3}[in.Class]
	if !ok {
		return nil, invalid("process.ioPriority.class", fmt.Sprintf("%q is not a class", in.Class))
	}
	if in.Priority < 0 || in.Priority > 7 {
		return nil, invalid("process.ioPriority.priority", fmt.Sprintf("%d is not between 0 and 7", in.Priority))
	}
	const classShift = 13
	v := class<<classShift | in.Priority
	return &v, nil
}

// ignoredSignals are those that this program was started with ignored. For every other one the Go runtime has a handler, or
// nobody ignores it.
func ignoredSignals() []int {
	var out []int
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(s) {
			out = append(out, int(s))
		}
	}
	return out
}
