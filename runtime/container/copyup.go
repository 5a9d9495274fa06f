package container

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/fs/safepath"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// Bounds of what a hostile image can make the runtime copy: the file system bounds the bytes.
const (
	maxCopyEntries = 100_000
	maxCopyDepth   = 64
)

// fillTmpfs makes the file system of a mount with the option tmpcopyup, filled with what the root file system has in its
// place. Podman asks for that by default. The result is detached; the caller closes it.
//
// The root file system is the image's, which is hostile: every name is opened relative to its directory's descriptor and
// no symlink is followed. Sockets are left out. Extended attributes are not copied, as by runc.
func fillTmpfs(m *initproc.Mount, root *os.File) (*os.File, error) {
	from, err := safepath.OpenInRoot(root, m.Destination, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open %q of the image: %w", m.Destination, err)
	}
	defer from.Close()
	tree, err := newTmpfs(m.Options, m.Source)
	if err != nil {
		return nil, err
	}
	to, err := openDir(tree, ".")
	if err == nil {
		c := copier{left: maxCopyEntries}
		err = c.directory(from, to, maxCopyDepth)
		to.Close()
	}
	if err != nil {
		tree.Close()
		return nil, fmt.Errorf("fill tmpfs on %q: %w", m.Destination, err)
	}
	return tree, nil
}

func newTmpfs(options []rootfs.Option, source string) (*os.File, error) {
	fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open tmpfs: %w", err)
	}
	defer unix.Close(fd)
	for _, o := range append([]rootfs.Option{{Key: "source", Value: source}}, options...) {
		switch {
		case o.Flag:
			err = unix.FsconfigSetFlag(fd, o.Key)
		case o.Value != "" || o.Key != "source":
			err = unix.FsconfigSetString(fd, o.Key, o.Value)
		}
		if err != nil {
			return nil, fmt.Errorf("set option %s of tmpfs: %w", o.Key, err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return nil, fmt.Errorf("make tmpfs: %w", err)
	}
	tree, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("mount tmpfs: %w", err)
	}
	return os.NewFile(uintptr(tree), "tmpfs"), nil
}

func openDir(parent *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open directory %q: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

type copier struct{ left int }

// directory copies the entries of from to to.
func (c *copier) directory(from, to *os.File, depth int) error {
	if depth == 0 {
		return fmt.Errorf("directories are nested more than %d deep: %w", maxCopyDepth, unix.ELOOP)
	}
	for {
		names, err := from.Readdirnames(256)
		for _, name := range names {
			if c.left--; c.left < 0 {
				return fmt.Errorf("more than %d files: %w", maxCopyEntries, unix.E2BIG)
			}
			if err := c.entry(from, to, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read directory: %w", err)
		}
	}
}

func (c *copier) entry(from, to *os.File, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("stat %q: %w", name, err)
	}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return nil
	case unix.S_IFDIR:
		err = c.subdirectory(from, to, name, depth)
	case unix.S_IFREG:
		err = copyFile(from, to, name)
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		var n int
		if n, err = unix.Readlinkat(int(from.Fd()), name, buf); err == nil {
			err = unix.Symlinkat(string(buf[:n]), int(to.Fd()), name)
		}
	default: // FIFOs and devices
		err = unix.Mknodat(int(to.Fd()), name, st.Mode&unix.S_IFMT|0o600, int(st.Rdev)) //nolint:gosec // device numbers fit
	}
	if err != nil {
		return fmt.Errorf("copy %q: %w", name, err)
	}
	return restoreMeta(to, name, &st)
}

func (c *copier) subdirectory(from, to *os.File, name string, depth int) error {
	src, err := openDir(from, name)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := unix.Mkdirat(int(to.Fd()), name, 0o700); err != nil {
		return err
	}
	dst, err := openDir(to, name)
	if err != nil {
		return err
	}
	defer dst.Close()
	return c.directory(src, dst, depth-1)
}

func copyFile(from, to *os.File, name string) error {
	// O_NONBLOCK: it may have become a FIFO since it was looked at.
	in, err := unix.Openat(int(from.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	src := os.NewFile(uintptr(in), name)
	defer src.Close()
	out, err := unix.Openat(int(to.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	dst := os.NewFile(uintptr(out), name)
	defer dst.Close()
	_, err = io.Copy(dst, src)
	return err
}

// restoreMeta gives the copy its owner, then its mode (a change of owner clears set-id bits), then its times.
func restoreMeta(to *os.File, name string, st *unix.Stat_t) error {
	if err := unix.Fchownat(int(to.Fd()), name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set owner of %q: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		// Nobody else can reach this file system yet, so that name is what was just made.
		if err := unix.Fchmodat(int(to.Fd()), name, st.Mode&0o7777, 0); err != nil {
			return fmt.Errorf("set mode of %q: %w", name, err)
		}
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(int(to.Fd()), name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times of %q: %w", name, err)
	}
	return nil
}
