package task

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is what PlanHost needs to know of this machine.
type Host struct {
	Top    []Top    // top-level directories that hold programs
	Etc    Etc      // allowed entries of /etc
	Homes  []string // home directories that no workspace may hold
	Passwd []byte
	Group  []byte
	GoBin  string // where a Go toolchain outside of PATH's usual places is, or empty
}

// Top is one top-level entry: a directory, or a symbolic link into one.
type Top struct {
	Name string
	Link string // its target, if it is a link
}

// ReadHost looks at the host. callerHome is the home directory of who asked.
func ReadHost(callerHome string) (*Host, error) {
	h := &Host{}
	for _, name := range []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt"} {
		t, ok, err := readTop("/" + name)
		if err != nil {
			return nil, fmt.Errorf("read host: %w", err)
		}
		if ok {
			h.Top = append(h.Top, t)
		}
	}
	var err error
	if h.Passwd, err = os.ReadFile("/etc/passwd"); err != nil {
		return nil, fmt.Errorf("read host: %w", err)
	}
	if h.Group, err = os.ReadFile("/etc/group"); err != nil {
		return nil, fmt.Errorf("read host: %w", err)
	}
	etc, err := os.OpenRoot("/etc")
	if err != nil {
		return nil, fmt.Errorf("read host: %w", err)
	}
	defer etc.Close()
	if h.Etc, err = readEtc(etc); err != nil {
		return nil, fmt.Errorf("read host: %w", err)
	}
	h.Homes = homes(h.Passwd, callerHome)
	if info, err := os.Stat("/usr/local/go/bin/go"); err == nil && info.Mode().IsRegular() {
		h.GoBin = "/usr/local/go/bin"
	}
	return h, nil
}

// Homes returns the home directories that no workspace may hold.
func Homes(callerHome string) ([]string, error) {
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return nil, fmt.Errorf("read home directories: %w", err)
	}
	return homes(passwd, callerHome), nil
}

func homes(passwd []byte, callerHome string) []string {
	out := []string{"/root"}
	if path.IsAbs(callerHome) {
		out = append(out, path.Clean(callerHome))
	}
	eachAccount(passwd, 7, func(f []string, id uint32) bool {
		if id >= firstHumanID && id != 65534 && path.IsAbs(f[5]) {
			out = append(out, path.Clean(f[5]))
		}
		return false
	})
	return out
}

func readTop(p string) (Top, bool, error) {
	info, err := os.Lstat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Top{}, false, nil
	case err != nil:
		return Top{}, false, err
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(p)
		return Top{Name: path.Base(p), Link: target}, true, err
	default:
		return Top{Name: path.Base(p)}, info.IsDir(), nil
	}
}

// OpenWorkspace opens dir and returns the handle, which the caller closes, and
// its real path. Whoever can write to a parent could put a link in the folder's
// place between the check of the path and the mount; so the path is read from
// the handle, and the handle is what gets mounted.
func OpenWorkspace(dir string) (*os.File, string, error) {
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", fmt.Errorf("open workspace: %w", err)
	}
	realPath, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err == nil {
		// A folder that was removed reads "/path (deleted)".
		var byHandle, byPath unix.Stat_t
		err = errors.Join(unix.Fstat(int(f.Fd()), &byHandle), unix.Lstat(realPath, &byPath))
		if err == nil && (byHandle.Dev != byPath.Dev || byHandle.Ino != byPath.Ino) {
			err = fmt.Errorf("%q was replaced: %w", realPath, unix.ESTALE)
		}
	}
	if err != nil {
		f.Close()
		return nil, "", fmt.Errorf("open workspace %q: %w", dir, err)
	}
	return f, realPath, nil
}

// WorkspaceOwner returns who owns the open directory, with the name and home of
// the host's passwd. Without an account, or with one whose home is no place for a
// private directory, the home is /home/agent.
func WorkspaceOwner(dir *os.File, passwd []byte) (User, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return User{}, fmt.Errorf("stat workspace: %w", err)
	}
	return account(passwd, st.Uid, st.Gid), nil
}

// UserOf returns the account of a uid; gid is the group if there is none.
func UserOf(uid, gid uint32, passwd []byte) User { return account(passwd, uid, gid) }

// account returns the account of a uid; gid is the group if there is none.
func account(passwd []byte, uid, gid uint32) User {
	u := User{UID: uid, GID: gid}
	eachAccount(passwd, 7, func(f []string, id uint32) bool {
		group, err := strconv.ParseUint(f[3], 10, 32)
		if id != uid || err != nil {
			return false
		}
		u.Name, u.GID, u.Home = f[0], uint32(group), path.Clean(f[5])
		return true
	})
	if !privateHome(u.Home) {
		u.Home = "/home/agent"
	}
	return u
}

// privateHome says whether an empty directory may be mounted over dir without
// hiding parts of the system ("/", "/usr/sbin", "/var/lib/x" are homes of
// daemons).
func privateHome(dir string) bool {
	if dir == "/root" {
		return true
	}
	for _, parent := range []string{"/home", "/Users", "/srv", "/export"} {
		if dir != parent && within(parent, dir) {
			return true
		}
	}
	return false
}

// UserByID returns the host's account of a numeric `UID[:GID]`.
func UserByID(text string, passwd []byte) (User, error) {
	uidText, gidText, hasGroup := strings.Cut(text, ":")
	uid, err := parseID(uidText)
	if err != nil {
		return User{}, fmt.Errorf("user %q: %w", text, err)
	}
	u := account(passwd, uid, uid)
	if hasGroup {
		if u.GID, err = parseID(gidText); err != nil {
			return User{}, fmt.Errorf("user %q: %w", text, err)
		}
	}
	return u, nil
}

func parseID(s string) (uint32, error) {
	id, err := strconv.ParseUint(s, 10, 32)
	if err != nil || strings.Trim(s, "0123456789") != "" || id == 1<<32-1 {
		return 0, errors.New("not UID or UID:GID in numbers")
	}
	return uint32(id), nil
}

// eachAccount calls f with the columns and the id of each well-formed line until
// it returns true.
func eachAccount(data []byte, columns int, f func(fields []string, id uint32) bool) {
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		fields := strings.Split(sc.Text(), ":")
		if len(fields) != columns || fields[0] == "" || strings.HasPrefix(fields[0], "#") {
			continue
		}
		id, err := parseID(fields[2])
		if err == nil && f(fields, id) {
			return
		}
	}
}
