package tree

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is an open directory beneath which paths are resolved. The zero value is a tree without entries.
type Root struct{ dir *os.File }

// NewRoot returns a Root for an open directory, which stays the caller's.
func NewRoot(dir *os.File) Root { return Root{dir} }

const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// maxAgain bounds how often an attacker who renames without pause makes us try.
const maxAgain = 256

// open opens a path beneath the root. The caller owns the file.
func (r Root) open(unsafePath string, flags int) (*os.File, error) {
	if r.dir == nil {
		return nil, &os.PathError{Op: "open", Path: unsafePath, Err: unix.ENOENT}
	}
	if unsafePath == "" {
		unsafePath = "."
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: beneath} //nolint:gosec // flags are bits
	for again := 0; ; again++ {
		fd, err := unix.Openat2(int(r.dir.Fd()), unsafePath, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), unsafePath), nil
		case (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)) && again < maxAgain:
			continue
		default:
			return nil, &os.PathError{Op: "open", Path: unsafePath, Err: err}
		}
	}
}

// openDir opens a directory beneath the root, for reading and as the base of further look-ups.
func (r Root) openDir(unsafePath string) (*os.File, error) {
	return r.open(unsafePath, unix.O_RDONLY|unix.O_DIRECTORY)
}

// OpenFile opens a regular file for reading. What else is at the path is refused, and a FIFO does not block.
func (r Root) OpenFile(unsafePath string) (*os.File, error) {
	f, err := r.open(unsafePath, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.EINVAL
	}
	if err != nil {
		f.Close()
		return nil, &os.PathError{Op: "open as a regular file", Path: unsafePath, Err: err}
	}
	return f, nil
}

// parent opens the directory of a path and returns the last component.
func (r Root) parent(unsafePath string) (*os.File, string, error) {
	dir, name := path.Split(unsafePath)
	if err := checkName(name); err != nil {
		return nil, "", err
	}
	f, err := r.open(strings.TrimSuffix(dir, "/"), unix.O_PATH|unix.O_DIRECTORY)
	return f, name, err
}

// checkName refuses what is not the name of an entry. Directories yield none of these; lists from elsewhere might.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("name %q: %w", name, unix.EINVAL)
	}
	return nil
}

// Lstat returns what is at a path, without following a symlink.
func (r Root) Lstat(unsafePath string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if unsafePath == "" {
		if r.dir == nil {
			return st, unix.ENOENT
		}
		return st, unix.Fstat(int(r.dir.Fd()), &st)
	}
	dir, name, err := r.parent(unsafePath)
	if err != nil {
		return st, err
	}
	defer dir.Close()
	return lstatAt(dir, name)
}

func lstatAt(dir *os.File, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// Readlink returns the target of a symlink.
func (r Root) Readlink(unsafePath string) (string, error) {
	dir, name, err := r.parent(unsafePath)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	return readlinkAt(dir, name)
}

func readlinkAt(dir *os.File, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// isMissing reports whether an error says that there is nothing at a path.
func isMissing(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

// Missing reports whether an error of this package says that there is nothing at a path: also where a component is no
// directory, or is a symlink, which is never followed.
func Missing(err error) bool { return isMissing(err) || errors.Is(err, unix.ELOOP) }

// procName is a path by which xattr calls reach an entry of an open directory; its last component is not followed.
func procName(dir *os.File, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + name
}

// Kind is the type of an entry.
type Kind string

// The kinds.
const (
	Dir      Kind = "dir"
	File     Kind = "file"
	Symlink  Kind = "symlink"
	FIFO     Kind = "fifo"
	Socket   Kind = "socket"
	Device   Kind = "device"
	Whiteout Kind = "whiteout" // only in an upper directory
)

func kindOf(st *unix.Stat_t) Kind {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return Dir
	case unix.S_IFREG:
		return File
	case unix.S_IFLNK:
		return Symlink
	case unix.S_IFIFO:
		return FIFO
	case unix.S_IFSOCK:
		return Socket
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
		return Whiteout
	}
	return Device
}
