package tree

import (
	"errors"
	"fmt"

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
	dir, name, err := upper.parent(unsafePath)
	if err != nil {
		return err
	}
	defer dir.Close()
	return setOpaque(dir, name)
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
