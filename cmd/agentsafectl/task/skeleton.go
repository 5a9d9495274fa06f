package task

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// WriteSkeleton makes the nodes beneath dir, in order. A later node of the same
// path replaces a file or a link; a directory may be named twice.
func WriteSkeleton(dir *os.Root, nodes []Node) error {
	for _, n := range nodes {
		if err := writeNode(dir, n); err != nil {
			return fmt.Errorf("write skeleton %q: %w", n.Path, err)
		}
	}
	return nil
}

func writeNode(dir *os.Root, n Node) error {
	mode := fs.FileMode(n.Mode & 0o777)
	switch {
	case n.Target != "":
		err := dir.Symlink(n.Target, n.Path)
		if errors.Is(err, fs.ErrExist) {
			if err = dir.Remove(n.Path); err == nil {
				err = dir.Symlink(n.Target, n.Path)
			}
		}
		return err
	case n.isDir():
		if err := dir.Mkdir(n.Path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return dir.Chmod(n.Path, mode) // the umask took bits away
	default:
		if err := dir.Remove(n.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err := dir.OpenFile(n.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = f.Write(n.Data)
		return errors.Join(err, f.Chmod(mode), f.Close())
	}
}
