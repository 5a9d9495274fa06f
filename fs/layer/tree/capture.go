package tree

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Capture writes into upper, in an overlay's format, what view has at a path, so that laying upper over what view
// becomes gives back what it is: a whiteout where there is nothing, a copy with everything below where there is. With
// alone, of a directory the entry itself only.
func Capture(view, upper Root, unsafePath string, alone bool) error {
	var w Writer
	if err := w.MakeParents(view, upper, unsafePath); err != nil {
		return err
	}
	st, err := view.Lstat(unsafePath)
	if isMissing(err) {
		return writeWhiteout(upper, unsafePath)
	}
	if err != nil {
		return fmt.Errorf("keep %q: %w", unsafePath, err)
	}
	if kindOf(&st) != Dir || alone {
		return w.Put(view, upper, unsafePath)
	}
	if err := w.Copy(view, upper, unsafePath); err != nil {
		return err
	}
	return upper.markOpaque(unsafePath)
}

// Copy copies a path with everything below it.
func (w *Writer) Copy(src, dst Root, unsafePath string) error {
	if len(unsafePath) > MaxPath {
		return ErrTooMuch
	}
	if err := w.Put(src, dst, unsafePath); err != nil {
		return err
	}
	st, err := src.Lstat(unsafePath)
	if err != nil || kindOf(&st) != Dir {
		return nil //nolint:nilerr // gone meanwhile, or complete
	}
	dir, err := src.openDir(unsafePath)
	if err != nil {
		return err
	}
	names, err := readNames(dir)
	dir.Close()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := w.Copy(src, dst, join(unsafePath, name)); err != nil {
			return err
		}
	}
	return nil
}

// CopyBelow copies everything below a directory.
func CopyBelow(src, dst Root) error {
	names, err := src.Names("")
	if err != nil {
		return err
	}
	var w Writer
	for _, name := range names {
		if err := w.Copy(src, dst, name); err != nil {
			return err
		}
	}
	return nil
}

// Measure returns how many bytes the files of a tree take on their disk, and how many entries it has; ErrTooMuch if that
// is more than most bytes, or more entries than are read.
func Measure(r Root, most int64) (bytes, entries int64, err error) {
	err = r.measure("", most, &bytes, &entries)
	return bytes, entries, err
}

func (r Root) measure(prefix string, most int64, bytes, entries *int64) error {
	dir, err := r.openDir(prefix)
	if err != nil {
		return err
	}
	names, err := readNames(dir)
	if err != nil {
		dir.Close()
		return err
	}
	var below []string
	const sector = 512
	for _, name := range names {
		st, err := lstatAt(dir, name)
		if isMissing(err) {
			continue
		}
		if err != nil {
			dir.Close()
			return err
		}
		*bytes += st.Blocks * sector
		if kindOf(&st) == Dir {
			below = append(below, join(prefix, name))
		}
	}
	dir.Close()
	if *entries += int64(len(names)); *entries > MaxEntries || *bytes > most || len(prefix) > MaxPath {
		return ErrTooMuch
	}
	for _, p := range below {
		if err := r.measure(p, most, bytes, entries); err != nil && !Missing(err) {
			return err
		}
	}
	return nil
}

func writeWhiteout(upper Root, unsafePath string) error {
	dir, name, err := upper.parent(unsafePath)
	if err != nil {
		return fmt.Errorf("keep the absence of %q: %w", unsafePath, err)
	}
	defer dir.Close()
	err = unix.Mknodat(int(dir.Fd()), name, unix.S_IFCHR, 0)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("keep the absence of %q: %w", unsafePath, err)
	}
	return nil
}

// CopyLayer copies an upper directory with its whiteouts and opaque directories.
func CopyLayer(src, dst Root) error {
	var w Writer
	return w.copyLayer(src, dst, "")
}

func (w *Writer) copyLayer(src, dst Root, prefix string) error {
	dir, err := src.openDir(prefix)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := readNames(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		p := join(prefix, name)
		st, err := lstatAt(dir, name)
		if isMissing(err) {
			continue
		}
		switch {
		case err != nil:
			return err
		case len(p) > MaxPath:
			return ErrTooMuch
		case kindOf(&st) == Whiteout:
			if err := writeWhiteout(dst, p); err != nil {
				return err
			}
			continue
		}
		a, err := readAttrs(dir, name, true)
		if err != nil {
			return fmt.Errorf("%q: %w", p, err)
		}
		if err := w.Put(src, dst, p); err != nil {
			return err
		}
		if kindOf(&st) != Dir {
			continue
		}
		if a.opaque {
			if err := dst.markOpaque(p); err != nil {
				return err
			}
		}
		if err := w.copyLayer(src, dst, p); err != nil {
			return err
		}
	}
	return nil
}

func (r Root) markOpaque(unsafePath string) error {
	dir, name, err := r.parent(unsafePath)
	if err != nil {
		return err
	}
	defer dir.Close()
	return setOpaque(dir, name)
}

// Create makes a new file with a content of the caller's. Of the mode the permission bits count.
func (w *Writer) Create(dst Root, unsafePath string, data []byte, mode uint32) error {
	err := w.do(func() error {
		dir, name, err := dst.parent(unsafePath)
		if err != nil {
			return err
		}
		defer dir.Close()
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		_, err = f.Write(data)
		return errors.Join(err, unix.Fchmod(fd, mode&0o777), f.Close())
	})
	if err != nil {
		return fmt.Errorf("write %q: %w", unsafePath, err)
	}
	return nil
}
