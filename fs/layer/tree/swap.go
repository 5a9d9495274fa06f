package tree

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// IsDir reports whether the path is a directory.
func (r Root) IsDir(unsafePath string) bool {
	st, err := r.Lstat(unsafePath)
	return err == nil && kindOf(&st) == Dir
}

// two opens the directories of two paths.
func (r Root) two(a, b string, use func(aDir *os.File, aName string, bDir *os.File, bName string) error) error {
	aDir, aName, err := r.parent(a)
	if err != nil {
		return err
	}
	defer aDir.Close()
	bDir, bName, err := r.parent(b)
	if err != nil {
		return err
	}
	defer bDir.Close()
	return use(aDir, aName, bDir, bName)
}

// MoveAway renames a path; what is not there is no error.
func (r Root) MoveAway(unsafePath, to string) error {
	err := r.two(unsafePath, to, func(from *os.File, name string, dir *os.File, toName string) error {
		return unix.Renameat(int(from.Fd()), name, int(dir.Fd()), toName)
	})
	if Missing(err) {
		return nil
	}
	return err
}

// Exchange puts staged, a complete file, in the place of a path, and keeps what was there as old. With staged empty the
// path becomes a directory. A file is replaced by one rename; staged is gone if and only if it is in place.
func (r Root) Exchange(staged, old, unsafePath string) error {
	if staged == "" {
		return r.exchangeDir(old, unsafePath)
	}
	st, err := r.Lstat(unsafePath)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err == nil {
		if kindOf(&st) == Dir || r.link(unsafePath, old) != nil {
			// No second name for it (it is a directory, or another's): out of the way, for a moment.
			if err := r.MoveAway(unsafePath, old); err != nil {
				return err
			}
		}
	}
	return r.two(staged, unsafePath, func(from *os.File, name string, dir *os.File, toName string) error {
		return unix.Renameat(int(from.Fd()), name, int(dir.Fd()), toName)
	})
}

func (r Root) link(unsafePath, old string) error {
	err := r.two(unsafePath, old, func(from *os.File, name string, dir *os.File, toName string) error {
		return unix.Linkat(int(from.Fd()), name, int(dir.Fd()), toName, 0)
	})
	if errors.Is(err, unix.EEXIST) {
		return nil // before a crash
	}
	return err
}

func (r Root) exchangeDir(old, unsafePath string) error {
	if r.IsDir(unsafePath) {
		return nil
	}
	if err := r.MoveAway(unsafePath, old); err != nil {
		return err
	}
	dir, name, err := r.parent(unsafePath)
	if err != nil {
		return err
	}
	defer dir.Close()
	const mode = 0o755
	return unix.Mkdirat(int(dir.Fd()), name, mode)
}

// PutBack undoes an Exchange or a MoveAway: old, if there is one, gets its path back; what was installed without one
// having been there is removed. What was installed from staged is staged again first, so that, whatever fails, all can
// still be done or undone.
func (r Root) PutBack(staged, old, unsafePath string, installed bool) error {
	if installed && staged != "" {
		if _, err := r.Lstat(staged); isMissing(err) {
			if err := r.link(unsafePath, staged); err != nil {
				return err
			}
		}
	}
	if _, err := r.Lstat(old); err == nil {
		if r.IsDir(unsafePath) != r.IsDir(old) {
			var w Writer
			if err := w.Remove(r, unsafePath); err != nil {
				return err
			}
		}
		return r.MoveAway(old, unsafePath)
	}
	if !installed {
		return nil
	}
	dir, name, err := r.parent(unsafePath)
	if err != nil {
		return err
	}
	defer dir.Close()
	flags := 0
	if r.IsDir(unsafePath) {
		flags = unix.AT_REMOVEDIR
	}
	err = unix.Unlinkat(int(dir.Fd()), name, flags)
	if errors.Is(err, unix.ENOTEMPTY) {
		return nil // it was there before, and holds what is not ours
	}
	return err
}
