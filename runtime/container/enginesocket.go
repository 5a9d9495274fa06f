package container

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/fs/safepath"
)

// Engines are known by the names and places of their sockets (profiles). Where an administrator has put one elsewhere it
// is known by who listens: the kernel lists the listening sockets of this network namespace with their paths, and an
// engine's process holds one of them. Nobody is connected to. A socket that is not looked at: one of another network
// namespace, one that a service manager holds until its service is started, and one below a mount that has come by
// another name than the one that the engine has bound it by.

// listener is a listening unix socket with a path.
type listener struct{ inode, path string }

// unixListeners lists the listening sockets of this process's network namespace. Source: proc(5), /proc/net/unix.
func unixListeners() ([]listener, error) {
	f, err := os.Open("/proc/self/net/unix")
	if err != nil {
		return nil, fmt.Errorf("list unix sockets: %w", err)
	}
	defer f.Close()
	var out []listener
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		const listening, number = "00010000", 8 // __SO_ACCEPTCON; columns
		// Num: RefCount Protocol Flags Type St Inode Path; the path may have spaces.
		head, path, found := strings.Cut(lines.Text(), " /")
		fields := strings.Fields(head)
		if found && len(fields) == number-1 && fields[3] == listening {
			out = append(out, listener{fields[6], "/" + path})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list unix sockets: %w", err)
	}
	return out, nil
}

// engines are the programs to whom a connection is as good as root, by the first 15 bytes of their names.
var engines = map[string]bool{ //nolint:gochecknoglobals // a constant table
	"dockerd": true, "containerd": true, "podman": true, "crio": true, "cri-dockerd": true, "buildkitd": true, "kubelet": true,
	"k3s": true, "k3s-server": true, "k3s-agent": true, "rke2": true, "com.docker.back": true, "libvirtd": true, "virtqemud": true,
	"virtlxcd": true, "lxd": true, "incusd": true, "snapd": true, "dbus-daemon": true, "dbus-broker": true,
}

// engineListeners finds the engine behind each source of a bind mount that is a socket or a directory: "dockerd (pid 7),
// which listens on /srv/api", by the mount's index. Most hosts have none of it beneath what is mounted.
func engineListeners(list sources) (map[int]string, error) {
	var all []listener
	asked := false
	var out map[int]string
	for i, src := range list {
		if src == nil || src.Mode&unix.S_IFMT != unix.S_IFSOCK && !src.IsDir() {
			continue
		}
		if !asked {
			var err error
			if all, err = unixListeners(); err != nil {
				return nil, err // what can't be looked at may be an engine's
			}
			asked = true
		}
		for _, l := range all {
			if l.forwardsKeys() || !l.within(src) {
				continue
			}
			who, err := engineHolding(l)
			if err != nil {
				return nil, err // likewise
			}
			if who != "" {
				if out == nil {
					out = map[int]string{}
				}
				out[i] = who + ", which listens on " + l.path
				break
			}
		}
	}
	return out, nil
}

// forwardsKeys reports whether a socket is one at which BuildKit, in dockerd or buildkitd, hands a step on to the agent of
// keys of whoever builds (RUN --mount=type=ssh): no way to the engine. The path is the kernel's record of where the
// listener was bound, so that no other name of an engine's socket passes for one.
func (l listener) forwardsKeys() bool {
	return filepath.Base(l.path) == "ssh_auth_sock" && strings.HasPrefix(filepath.Base(filepath.Dir(l.path)), ".buildkit-ssh-sock")
}

// within reports whether a socket is the source or lies in it.
func (l listener) within(src *rootfs.Source) bool {
	if !src.IsDir() {
		var st unix.Stat_t
		return l.path == src.Path || unix.Stat(l.path, &st) == nil && st.Dev == src.Dev && st.Ino == src.Ino
	}
	top := strings.TrimSuffix(src.Path, "/") + "/"
	rest, below := strings.CutPrefix(l.path, top)
	if !below {
		// Engines bind by /var/run, which is a symlink.
		rest, below = strings.CutPrefix(strings.TrimPrefix(l.path, "/var"), top)
		below = below && strings.HasPrefix(l.path, "/var/run/")
	}
	if !below {
		return false
	}
	// In the very tree that is mounted: what is mounted below it need not come along.
	f, err := safepath.OpenInRoot(src.Tree, rest, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return false
	}
	defer f.Close()
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// engineHolding names the engine's process that holds a socket, "" if none does. What can't be looked at is no answer: a
// process whose descriptors are hidden from an ordinary user counts as the holder of a socket that is not the user's own,
// and any other failure (no memory, no descriptors) is an error.
func engineHolding(l listener) (string, error) {
	want := "socket:[" + l.inode + "]"
	var st unix.Stat_t
	if unix.Stat("/proc/1", &st) != nil && !l.own() {
		return "a process that is hidden from uid " + strconv.Itoa(os.Geteuid()), nil // hidepid
	}
	pids, err := numbers("/proc")
	if err != nil {
		return "", fmt.Errorf("look for the engine behind %s: %w", l.path, err)
	}
	for _, pid := range pids {
		name, err := os.ReadFile("/proc/" + pid + "/comm")
		comm := strings.TrimSpace(string(name))
		if err == nil && !engines[comm] {
			continue
		}
		holds := false
		if err == nil {
			holds, err = holdsDescriptor(pid, want)
		}
		switch {
		case hasEnded(err):
		case errors.Is(err, os.ErrPermission):
			if !l.own() {
				return comm + " (pid " + pid + ", whose descriptors are hidden from uid " + strconv.Itoa(os.Geteuid()) + ")", nil
			}
		case err != nil:
			return "", fmt.Errorf("look for the engine behind %s: %w", l.path, err)
		case holds:
			return comm + " (pid " + pid + ")", nil
		}
	}
	return "", nil
}

// own reports whether the socket's file is the caller's: an engine of somebody else's has its own.
func (l listener) own() bool {
	var st unix.Stat_t
	return unix.Lstat(l.path, &st) == nil && int(st.Uid) == os.Geteuid()
}

// holdsDescriptor reports whether a process has a descriptor of this name.
func holdsDescriptor(pid, want string) (bool, error) {
	dir := "/proc/" + pid + "/fd"
	fds, err := numbers(dir)
	if err != nil {
		return false, err
	}
	for _, fd := range fds {
		target, err := os.Readlink(dir + "/" + fd)
		if err == nil && target == want {
			return true, nil
		}
		if err != nil && !hasEnded(err) {
			return false, err
		}
	}
	return false, nil
}

// hasEnded reports whether a look into proc failed because the process, or its descriptor, is gone.
func hasEnded(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// numbers lists the entries of a directory of proc that are numbers.
func numbers(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, n := range names {
		if _, err := strconv.Atoi(n); err == nil {
			out = append(out, n)
		}
	}
	return out, nil
}
