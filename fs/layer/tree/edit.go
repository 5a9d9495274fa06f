package tree

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Names returns the names in a directory, sorted.
func (r Root) Names(unsafePath string) ([]string, error) {
	dir, err := r.openDir(unsafePath)
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", unsafePath, err)
	}
	defer dir.Close()
	return readNames(dir)
}

// KindAt returns the kind of what is at a path, and its attributes.
func (r Root) KindAt(unsafePath string) (Kind, Attr, error) {
	st, err := r.Lstat(unsafePath)
	if err != nil {
		return "", Attr{}, err
	}
	return kindOf(&st), attrOf(&st), nil
}

// Whiteout writes into upper that there is nothing at a path, in place of what upper has there. The directories above it
// are those of view.
func (w *Writer) Whiteout(view, upper Root, unsafePath string) error {
	if err := w.MakeParents(view, upper, unsafePath); err != nil {
		return err
	}
	if err := w.Remove(upper, unsafePath); err != nil {
		return err
	}
	return writeWhiteout(upper, unsafePath)
}

// MakeDir makes a directory with the mode and owner of a; one that is there stays.
func (w *Writer) MakeDir(dst Root, unsafePath string, a *Attr) error {
	return w.make(dst, unsafePath, a, func(dir *os.File, name string) error {
		err := unix.Mkdirat(int(dir.Fd()), name, a.Mode)
		if errors.Is(err, unix.EEXIST) && NewRoot(dir).IsDir(name) {
			return nil
		}
		return err
	})
}

// MakeSymlink makes a symlink with the owner of a.
func (w *Writer) MakeSymlink(dst Root, unsafePath, target string, a *Attr) error {
	return w.make(dst, unsafePath, a, func(dir *os.File, name string) error {
		return unix.Symlinkat(target, int(dir.Fd()), name)
	})
}

// MakeFile makes an empty regular file with the owner of a.
func (w *Writer) MakeFile(dst Root, unsafePath string, a *Attr) error {
	return w.make(dst, unsafePath, a, func(dir *os.File, name string) error {
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

func (w *Writer) make(dst Root, unsafePath string, a *Attr, how func(dir *os.File, name string) error) error {
	err := w.do(func() error {
		dir, name, err := dst.parent(unsafePath)
		if err != nil {
			return err
		}
		defer dir.Close()
		if err := how(dir, name); err != nil {
			return err
		}
		return unix.Fchownat(int(dir.Fd()), name, int(a.UID), int(a.GID), unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return fmt.Errorf("make %q: %w", unsafePath, err)
	}
	return nil
}

// Overwrite gives a regular file another content and mode; owner and attributes stay. Of the mode the permission bits
// count: whoever changes a program makes no set-id program of it.
func (w *Writer) Overwrite(dst Root, unsafePath, data string, mode uint32) error {
	err := w.do(func() error {
		dir, name, err := dst.parent(unsafePath)
		if err != nil {
			return err
		}
		defer dir.Close()
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || kindOf(&st) != File {
			return errors.Join(err, unix.EINVAL)
		}
		if err := f.Truncate(0); err != nil {
			return err
		}
		if _, err := f.WriteString(data); err != nil {
			return err
		}
		return unix.Fchmod(fd, mode&0o777)
	})
	if err != nil {
		return fmt.Errorf("write %q: %w", unsafePath, err)
	}
	return nil
}
