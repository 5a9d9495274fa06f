package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Source is an opened source of a bind mount.
type Source struct {
	// Tree is a detached copy of the mount tree at the source (open_tree with OPEN_TREE_CLONE). The holder closes it.
	Tree *os.File
	// Path is the real path of the source on the host, symlinks resolved.
	Path string
	// Mode has the file type; Dev and Ino identify the file; Rdev is the device number of a device node.
	Mode           uint32
	Dev, Ino, Rdev uint64
}

// IsDir reports whether the source is a directory.
func (s *Source) IsDir() bool { return s.Mode&unix.S_IFMT == unix.S_IFDIR }

// OpenSource opens what m binds. The path is resolved once, so that what is judged is what is mounted. A relative
// source is relative to dir, the bundle. The caller owns the returned Tree.
func (m *Mount) OpenSource(dir *os.File) (*Source, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if m.Recursive {
		flags |= unix.AT_RECURSIVE
	}
	tree, err := openTree(int(dir.Fd()), m.Source, flags)
	if err != nil {
		return nil, fmt.Errorf("open source %q of mount %q: %w", m.Source, m.Destination, explainTree(err))
	}
	s := &Source{Tree: tree}
	if err := s.identify(int(dir.Fd()), m.Source); err != nil {
		tree.Close()
		return nil, fmt.Errorf("identify source %q of mount %q: %w", m.Source, m.Destination, err)
	}
	return s, nil
}

// OpenRoot opens a detached copy of the mount tree at the root file system. A root that is a symlink is refused, as by
// runc: whoever may swap it would choose what the container sees.
func OpenRoot(path string) (*Source, error) {
	m := Mount{Source: path, Destination: "/", Recursive: true}
	cwd, err := os.OpenFile(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open working directory: %w", err)
	}
	defer cwd.Close()
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil, fmt.Errorf("root.path %q is a symlink: %w", path, unix.ELOOP)
	}
	s, err := m.OpenSource(cwd)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("root.path %q does not exist: %w", path, unix.ENOENT)
		}
		return nil, fmt.Errorf("root.path %q: %w", path, err)
	}
	if !s.IsDir() {
		s.Tree.Close()
		return nil, fmt.Errorf("root.path %q is not a directory: %w", path, unix.ENOTDIR)
	}
	return s, nil
}

// identify fills in who the file is. Device and inode come from the detached tree; its path is unreachable from here
// (the kernel prints it relative to the tree), so the path is read from a second look-up that must meet the same inode.
func (s *Source) identify(dir int, source string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.Tree.Fd()), &st); err != nil {
		return err
	}
	s.Mode, s.Dev, s.Ino, s.Rdev = st.Mode, st.Dev, st.Ino, st.Rdev
	fd, err := unix.Openat(dir, source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var again unix.Stat_t
	if err := unix.Fstat(fd, &again); err != nil {
		return err
	}
	if again.Dev != st.Dev || again.Ino != st.Ino {
		return fmt.Errorf("the source changed while it was opened: %w", unix.ESTALE)
	}
	s.Path, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return err
}

func openTree(dir int, path string, flags uint) (*os.File, error) {
	fd, err := unix.OpenTree(dir, path, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// OpenDevice opens a detached mount of a device node of the host, for user namespaces (which can't mknod) and for
// masks. It refuses whatever is not the character device major:minor (CVE-2025-31133: a /dev/null that was swapped).
//
// The mount is read-only: a device can be written through it, but the node is the host's own, and root in a container
// would change its mode or owner for everybody (TestAttack_ModeOfHostDevice).
func OpenDevice(path string, major, minor uint32) (*os.File, error) {
	tree, err := openTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("open device %s: %w", path, explainTree(err))
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(tree.Fd()), &st); err != nil {
		tree.Close()
		return nil, fmt.Errorf("stat device %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(st.Rdev) != major || unix.Minor(st.Rdev) != minor {
		tree.Close()
		return nil, fmt.Errorf("%s is not the character device %d:%d: %w", path, major, minor, unix.ENODEV)
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, attr); err != nil {
		tree.Close()
		return nil, fmt.Errorf("make mount of %s read-only: %w", path, err)
	}
	return tree, nil
}

// OpenNull opens the host's null device for reading and writing, through a mount of OpenDevice's kind. The caller owns
// the file.
func OpenNull() (*os.File, error) {
	tree, err := OpenDevice(os.DevNull, 1, 3)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(tree.Fd())), os.O_RDWR|unix.O_CLOEXEC, 0)
	// The file keeps its mount. The end of a detached one waits for all processors (synchronize_rcu), 0.1 ms that nobody
	// else needs to wait for.
	go tree.Close()
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	return f, nil
}

func explainTree(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the mount is unbindable or is not of this mount namespace: %w", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("CAP_SYS_ADMIN is needed to copy a mount: %w", err)
	default:
		return err
	}
}
