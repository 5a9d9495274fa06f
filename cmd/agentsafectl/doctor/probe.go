package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/cgroup"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// Options says where to look.
type Options struct {
	Program   string            // this program: probes that need namespaces execute it again, see RunProbe
	ProbeArgs []string          // arguments in front of the probe's name
	Programs  map[string]string // name to path, of the installed programs
	StateDir  string
	DataDir   string
}

// Probe asks this machine. It takes some tens of milliseconds.
func Probe(ctx context.Context, o Options) (*Facts, error) {
	f := &Facts{Machine: runtime.GOARCH, UID: os.Geteuid(), Programs: o.Programs, Syscalls: syscalls()}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return nil, fmt.Errorf("read kernel release: %w", err)
	}
	f.Release = unix.ByteSliceToString(uts.Release[:])
	f.CapsEff = effectiveCaps()
	f.LandlockABI, f.LandlockErr = landlockABI()
	probeSeccomp(f)
	f.Namespaces = namespaceKinds()
	f.MemfdErr, f.MemfdNoExec = memfd(), readInt("/proc/sys/vm/memfd_noexec", 0)
	f.LSMs, f.AppArmor, f.SELinux = securityModules()
	f.CoreToProgram = coreProgram()
	f.Cgroup = cgroups()
	f.UserNSMax = readInt("/proc/sys/user/max_user_namespaces", -1)
	f.UserNSForAll = readInt("/proc/sys/kernel/unprivileged_userns_clone", 1) == 1 &&
		readInt("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 0) == 0
	f.SubIDs = subordinateIDs()
	f.Mappers, f.Delegated = idMappers(), delegated()
	children(ctx, o, f)
	f.Dirs = []DirFacts{directory("state directory", o.StateDir), directory("data directory", o.DataDir)}
	f.Engines = engines(ctx, "/")
	f.Config = hostConfig()
	return f, nil
}

func hostConfig() HostConfigFacts {
	c, err := container.ReadHostConfig()
	if err != nil {
		return HostConfigFacts{Err: err.Error()}
	}
	out := HostConfigFacts{Default: c.Default}
	for _, h := range c.Handlers {
		out.Handlers = append(out.Handlers, h.Name+"="+h.Profile)
		if h.Enforcement == container.EnforceWarn {
			out.WarnOnly = append(out.WarnOnly, h.Name)
		}
	}
	return out
}

// errText is the fact about an attempt: empty if it worked.
func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// syscalls tries each call with arguments that can't do anything. ENOSYS says
// that the kernel does not have it; EPERM with invalid arguments says that a
// seccomp filter or a missing capability stands before it.
func syscalls() map[string]string {
	const bad = ^uintptr(0) // a descriptor that is none
	raw := func(nr uintptr, args ...uintptr) error {
		var a [6]uintptr
		copy(a[:], args)
		_, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno == 0 {
			return nil
		}
		return errno
	}
	attempts := map[string]error{
		"open_tree":         raw(unix.SYS_OPEN_TREE, bad, 0, 0),
		"move_mount":        raw(unix.SYS_MOVE_MOUNT, bad, 0, bad, 0, 0),
		"fsopen":            raw(unix.SYS_FSOPEN, 0, 0),
		"fsconfig":          raw(unix.SYS_FSCONFIG, bad, 0, 0, 0, 0),
		"fsmount":           raw(unix.SYS_FSMOUNT, bad, 0, 0),
		"mount_setattr":     raw(unix.SYS_MOUNT_SETATTR, bad, 0, 0, 0, 0),
		"pidfd_open":        pidfdOpen(),
		"pidfd_send_signal": raw(unix.SYS_PIDFD_SEND_SIGNAL, bad, 0, 0, 0),
		"clone3":            raw(unix.SYS_CLONE3, 0, 0),
		"close_range":       raw(unix.SYS_CLOSE_RANGE, bad>>32, bad>>32, 0),
		"openat2":           openat2(),
	}
	out := map[string]string{}
	for name, err := range attempts {
		if errors.Is(err, unix.ENOSYS) {
			out[name] = err.Error()
			continue
		}
		// Mount calls look at the privilege first, where EPERM says nothing
		// about the call.
		if errors.Is(err, unix.EPERM) && os.Geteuid() == 0 {
			out[name] = err.Error()
			continue
		}
		out[name] = ""
	}
	return out
}

func pidfdOpen() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func openat2() error {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// landlockABI asks for the version. Source: landlock.rst, "Landlock ABI versions".
func landlockABI() (int, string) {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	switch {
	case errno == 0:
		return int(abi), ""
	case errors.Is(errno, unix.ENOSYS):
		return 0, "not in this kernel"
	case errors.Is(errno, unix.EOPNOTSUPP):
		return 0, "built in but not enabled at boot"
	default:
		return 0, errno.Error()
	}
}

// probeSeccomp installs nothing: with a filter at address 0 a kernel that knows
// the flags answers EFAULT, one that does not EINVAL.
func probeSeccomp(f *Facts) {
	set := func(flags uintptr) error {
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, 0)
		if errors.Is(errno, unix.EFAULT) {
			return nil
		}
		return errno
	}
	f.SeccompFilter = set(0) == nil
	f.SeccompWaitKillErr = errText(set(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV))
	data, _ := os.ReadFile("/proc/sys/kernel/seccomp/actions_avail") // absent: none
	f.SeccompActions = strings.Fields(string(data))
}

func effectiveCaps() uint64 {
	data, _ := os.ReadFile("/proc/self/status") // absent: none
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, _ := strconv.ParseUint(strings.TrimSpace(rest), 16, 64) // the kernel's own
			return caps
		}
	}
	return 0
}

func namespaceKinds() []string {
	var out []string
	for _, n := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup", "user", "time"} {
		if _, err := os.Lstat("/proc/self/ns/" + n); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// memfd does what the runtime does with its init program.
func memfd() string {
	const mfdExec = 0x10 // MFD_EXEC, Linux 6.3; before: EINVAL, and executable anyway
	fd, err := unix.MemfdCreate("agentsafe-probe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|mfdExec)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("agentsafe-probe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return "memfd_create: " + err.Error()
	}
	defer unix.Close(fd)
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return "seal: " + err.Error()
	}
	if _, err := unix.Write(fd, []byte("x")); !errors.Is(err, unix.EPERM) {
		return fmt.Sprintf("write to a sealed memfd: %v", err)
	}
	return ""
}

func securityModules() (list []string, apparmor, selinux bool) {
	if data, err := os.ReadFile("/sys/kernel/security/lsm"); err == nil {
		list = strings.Split(strings.TrimSpace(string(data)), ",")
	}
	data, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	apparmor = err == nil && strings.HasPrefix(string(data), "Y")
	_, err = os.Stat("/sys/fs/selinux/enforce")
	return list, apparmor, err == nil
}

func coreProgram() string {
	data, _ := os.ReadFile("/proc/sys/kernel/core_pattern") // absent: none
	program, ok := strings.CutPrefix(string(data), "|")
	if fields := strings.Fields(program); ok && len(fields) > 0 {
		return fields[0]
	}
	return ""
}

func subordinateIDs() bool {
	name := os.Getenv("USER")
	if os.Geteuid() == 0 {
		name = "root"
	}
	data, _ := os.ReadFile("/etc/subuid") // absent: none
	for line := range strings.Lines(string(data)) {
		owner, _, _ := strings.Cut(line, ":")
		if owner == name && name != "" || owner == strconv.Itoa(os.Geteuid()) {
			return true
		}
	}
	return false
}

// idMappers looks for the setuid programs that write the maps of ordinary users.
func idMappers() bool {
	_, uerr := exec.LookPath("newuidmap")
	_, gerr := exec.LookPath("newgidmap")
	return uerr == nil && gerr == nil
}

// delegated lists the controllers that this process may limit by.
func delegated() []string {
	host, err := cgroup.ReadHost()
	if err != nil {
		return nil
	}
	host.AskWritable()
	var out []string
	for _, c := range []string{"memory", "cpu", "pids"} {
		if host.Delegates(c) {
			out = append(out, c)
		}
	}
	return out
}

// cgroups looks at where this process is.
func cgroups() CgroupFacts {
	c := CgroupFacts{Mode: "none"}
	const base = "/sys/fs/cgroup"
	_, err := os.Stat("/run/systemd/system")
	c.Systemd = err == nil
	var st unix.Statfs_t
	if unix.Statfs(base, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		c.Mode = "unified"
		data, _ := os.ReadFile(base + "/cgroup.controllers") // absent: none
		c.Controllers = strings.Fields(string(data))
		own := filepath.Join(base, ownCgroup())
		c.Writable = unix.Access(own, unix.W_OK) == nil
		matches, _ := filepath.Glob(base + "/*/cgroup.kill") // the pattern is right
		c.Kill = len(matches) > 0
		return c
	}
	entries, err := os.ReadDir(base)
	if err != nil {
		return c
	}
	for _, e := range entries {
		path := filepath.Join(base, e.Name())
		if unix.Statfs(path, &st) != nil || e.Type()&fs.ModeSymlink != 0 {
			continue
		}
		switch st.Type {
		case unix.CGROUP_SUPER_MAGIC:
			if c.Mode == "none" {
				c.Mode = "legacy"
			}
			c.Controllers = append(c.Controllers, strings.Split(e.Name(), ",")...)
			c.Writable = unix.Access(path, unix.W_OK) == nil
		case unix.CGROUP2_SUPER_MAGIC:
			c.Mode = "hybrid"
		}
	}
	c.Controllers = slices.DeleteFunc(c.Controllers, func(n string) bool { return n == "systemd" })
	sort.Strings(c.Controllers)
	return c
}

// ownCgroup returns our path in the v2 hierarchy.
func ownCgroup() string {
	data, _ := os.ReadFile("/proc/self/cgroup") // absent: the root
	for line := range strings.Lines(string(data)) {
		if p, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(p)
		}
	}
	return "/"
}

func readInt(path string, otherwise int) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return otherwise
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return otherwise
	}
	return n
}

func directory(name, path string) DirFacts {
	d := DirFacts{Name: name, Path: path}
	if path == "" {
		d.Err = "there is no place for it: set XDG_RUNTIME_DIR and HOME"
		return d
	}
	for at := path; ; at = filepath.Dir(at) {
		var st unix.Stat_t
		err := unix.Stat(at, &st)
		if errors.Is(err, unix.ENOENT) && at != "/" {
			continue // it will be made: what counts is its parent
		}
		var space unix.Statfs_t
		if err == nil {
			err = unix.Statfs(at, &space)
		}
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = unix.ENOTDIR
		}
		if err == nil && os.Geteuid() == 0 {
			err = unix.Access(at, unix.W_OK)
		}
		d.Err = errText(err)
		d.Exists, d.Mode, d.UID = at == path, st.Mode&0o7777, st.Uid
		d.FreeBytes = space.Bavail * uint64(space.Bsize) //nolint:gosec // a block size is positive
		return d
	}
}
