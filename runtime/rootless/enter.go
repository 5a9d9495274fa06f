package rootless

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// Active reports whether the process acts for an ordinary user: as one, or as root of a user namespace.
func Active() bool { return os.Geteuid() != 0 || rootfs.InUserNamespace() }

const (
	// enteredEnv is this process's number once it has made itself root of a namespace.
	enteredEnv = "AGENTSAFE_ENTERED"
	// oneIDEnv tells the program that is executed again why it has one id only.
	oneIDEnv = "AGENTSAFE_ONE_ID"
)

// Entered reports whether this process was an ordinary user's before Enter.
func Entered() bool { return os.Getenv(enteredEnv) == strconv.Itoa(os.Getpid()) }

// ForUser reports whether state and data are those of an ordinary user: one who calls, or whose namespace this process
// is root of. Root of a container that happens to be in a user namespace is not meant; as for runc, $USER tells.
func ForUser() bool {
	if os.Geteuid() != 0 || Entered() {
		return true
	}
	return os.Getenv(runtimeDirEnv) != "" && os.Getenv("USER") != "root" && rootfs.InUserNamespace()
}

// Enter makes an ordinary user's process root of a user namespace, by executing the program again with the same
// arguments. join is the namespace, nil for a new one; it stays the caller's. A process that is root already stays as it
// is. Otherwise Enter returns only with an error; failureStatus is the exit status for what fails later.
//
// The caller has no other goroutines whose work would be lost, and has marked every descriptor that is not to be kept.
func Enter(join *os.File, failureStatus int) error {
	if os.Geteuid() == 0 {
		return nil
	}
	if rootfs.InUserNamespace() {
		return errors.New("this user is not root of the user namespace that it is in: containers can't be set up from here")
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	env := append(os.Environ(), enteredEnv+"="+strconv.Itoa(os.Getpid()))
	if dir := os.Getenv(runtimeDirEnv); dir == "" {
		if dir, err := runtimeDir(); err == nil {
			env = append(env, runtimeDirEnv+"="+dir) // it is found by the user's number, which shows as 0 inside
		}
	}
	ns := join
	if ns == nil {
		var why error
		if ns, why, err = newNamespace(); err != nil {
			return explain(err)
		}
		defer ns.Close()
		if why != nil {
			env = append(env, oneIDEnv+"="+why.Error())
		}
	}
	in := &initproc.Enter{UserNamespace: ns, Program: self, Args: os.Args, Env: env, FailureStatus: failureStatus}
	return in.Exec()
}

// explain adds what helps an ordinary user who can't make a user namespace.
func explain(err error) error {
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EACCES) {
		return err
	}
	return fmt.Errorf("this host does not let ordinary users make user namespaces (sysctl user.max_user_namespaces, "+
		"kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): run as root, or let the "+
		"administrator allow it: %w", err)
}

// newNamespace makes the namespace. oneID says why it has one id only; nil if it has more.
func newNamespace() (ns *os.File, oneID, err error) {
	h, err := initproc.HoldUserNamespace()
	if err != nil {
		return nil, nil, err
	}
	defer h.Close()
	uids, gids, oneID := subordinateMaps()
	if oneID == nil {
		oneID = errors.Join(runMapper("newuidmap", h.PID(), uids), runMapper("newgidmap", h.PID(), gids))
	}
	if oneID != nil {
		// A map is written once: one that a helper has written already needs another namespace.
		h.Close()
		if h, err = initproc.HoldUserNamespace(); err != nil {
			return nil, nil, err
		}
		defer h.Close()
		if err := mapOneID(h.PID()); err != nil {
			return nil, nil, err
		}
	}
	ns, err = os.OpenFile("/proc/"+strconv.Itoa(h.PID())+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open user namespace: %w", err)
	}
	return ns, oneID, nil
}

// subordinateMaps plans the maps of a user with subordinate ids; the error says why it has none.
func subordinateMaps() (uids, gids Map, err error) {
	uid := os.Geteuid()
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("look up user: %w", err)
	}
	name := account(string(passwd), uid).name
	read := func(path string, own int) (Map, error) {
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read subordinate ids: %w", err)
		}
		ranges := ParseSubIDs(string(text), name, uid)
		if len(ranges) == 0 {
			return nil, fmt.Errorf("%s lists no ids for this user", path)
		}
		return PlanMap(own, ranges), nil
	}
	if uids, err = read("/etc/subuid", uid); err != nil {
		return nil, nil, err
	}
	gids, err = read("/etc/subgid", os.Getegid())
	return uids, gids, err
}

// runMapper has one of the setuid helpers write a map. They check by themselves what the administrator has listed.
func runMapper(name string, pid int, m Map) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("%s is not installed (Debian: uidmap)", name)
	}
	args := []string{strconv.Itoa(pid)}
	for _, l := range m {
		args = append(args, strconv.Itoa(l.ContainerID), strconv.Itoa(l.HostID), strconv.Itoa(l.Size))
	}
	cmd := exec.Command(path, args...) //nolint:noctx // it writes one file
	var text bytes.Buffer
	cmd.Env, cmd.Stderr = []string{}, &text
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(text.String()))
	}
	return nil
}

// mapOneID maps the user's own ids to 0, which needs no helper. Source: user_namespaces(7).
func mapOneID(pid int) error {
	dir := "/proc/" + strconv.Itoa(pid) + "/"
	for _, w := range []struct{ file, text string }{
		{"uid_map", fmt.Sprintf("0 %d 1\n", os.Geteuid())},
		{"setgroups", "deny"},
		{"gid_map", fmt.Sprintf("0 %d 1\n", os.Getegid())},
	} {
		f, err := os.OpenFile(dir+w.file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("map ids: %w", err)
		}
		_, err = f.WriteString(w.text)
		f.Close()
		if err != nil {
			return fmt.Errorf("map ids: write %s: %w", w.file, err)
		}
	}
	return nil
}

// OneID says why this namespace has one id only; "" if it has more, or is none of ours.
func OneID() string { return os.Getenv(oneIDEnv) }

// SetgroupsDenied reports whether the kernel forbids setgroups(2) here: one id is mapped, and the supplementary groups
// of the user can't be given up.
func SetgroupsDenied() bool {
	data, err := os.ReadFile("/proc/self/setgroups")
	return err == nil && strings.TrimSpace(string(data)) == "deny"
}

// Above opens the user namespace above the one of a process, which is where the process's container was set up. The
// caller closes it; the error is ErrNone if the process is in this one itself, or in one that is not the caller's.
func Above(pid int) (*os.File, error) {
	f, err := os.OpenFile("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open user namespace of process %d: %w", pid, err)
	}
	defer f.Close()
	const nsGetParent = 0xb702
	fd, err := unix.IoctlRetInt(int(f.Fd()), nsGetParent)
	if errors.Is(err, unix.EPERM) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("find the namespace above that of process %d: %w", pid, err)
	}
	unix.CloseOnExec(fd)
	above := os.NewFile(uintptr(fd), "userns")
	var a, b unix.Stat_t
	if unix.Fstat(fd, &a) == nil && unix.Stat("/proc/self/ns/user", &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino {
		above.Close()
		return nil, ErrNone
	}
	return above, nil
}

// ErrNone says that there is no user namespace to join.
var ErrNone = errors.New("no user namespace of this user's")
