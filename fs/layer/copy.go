package layer

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// CopyOptions say what becomes of a folder that overlayfs can't take: it stacks two overlays at most, and some file
// systems are no lower ones. A copy of the folder is; the host's folder itself stays what promotions write to.
type CopyOptions struct {
	// UpTo is how many bytes of a folder are copied; 0 has it refused.
	UpTo int64
	// Need is why a folder is copied that can be overlaid, as no transaction could lie on that; nil for one that can.
	Need error
	// Note is told what is about to be copied, which may take long; nil discards it.
	Note func(message string)
}

func copyDir(w *Workspace) string { return w.Name + "/copy" }

// copyLower makes a copy of the host's folder in the directory of the layers, from where an overlay takes it.
func (l *Layers) copyLower(w *Workspace, source *os.File, o *CopyOptions, cause error) error {
	// The caller's handle may be one that can only be looked up in.
	dir, err := reopen(source)
	if err != nil {
		return err
	}
	defer dir.Close()
	src := tree.NewRoot(dir)
	bytes, entries, err := tree.Measure(src, o.UpTo)
	if errors.Is(err, tree.ErrTooMuch) {
		return fmt.Errorf("%w; nor is the folder copied: it has more than %d bytes or %d entries (filesystem.workspace.copy)", cause, o.UpTo, tree.MaxEntries)
	}
	if err != nil {
		return fmt.Errorf("%w; nor can it be copied: %w", cause, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(l.dir.Fd()), &fs); err != nil {
		return fmt.Errorf("stat file system of layers: %w", err)
	}
	if int64(fs.Bavail)*fs.Bsize < bytes { //nolint:gosec // a number of blocks
		return fmt.Errorf("%w; nor can it be copied: %d bytes: %w", cause, bytes, unix.ENOSPC)
	}
	if o.Note != nil {
		o.Note(fmt.Sprintf("workspace %q: a copy of the folder is worked on (%d entries, %d bytes), as it can't be overlaid: %v", w.Source, entries, bytes, cause))
	}
	if err := l.makeDir(nil, copyDir(w)); err != nil {
		return err
	}
	to, err := l.open(nil, copyDir(w))
	if err != nil {
		return err
	}
	defer to.Close()
	if err := tree.CopyBelow(src, tree.NewRoot(to)); err != nil {
		return fmt.Errorf("copy workspace %q: %w", w.Source, err)
	}
	w.Copied = true
	return nil
}

// lower opens what a workspace's overlay lies on: the host's folder, or the copy that was made of it.
func (l *Layers) lower(w *Workspace) (*os.File, error) {
	if w.Copied {
		return l.open(nil, copyDir(w))
	}
	return w.host()
}

// copyChanged says, in words, that the host's path is not what was copied any more; "" if it is. Clocks of two file
// systems are not compared.
func (l *Layers) copyChanged(i *Item, host tree.Root) (string, error) {
	dir, err := l.lower(i.w)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	then := tree.NewRoot(dir)
	if _, err := then.Lstat(i.Path); tree.Missing(err) {
		return "it was made on the host since", nil
	}
	list, err := tree.List(host, then, tree.ListOptions{Below: []string{i.Path}, AnyOverlay: true})
	if err != nil {
		return "", fmt.Errorf("compare %q with its copy: %w", i.Path, err)
	}
	for _, c := range list {
		if len(c.Path) >= len(i.Path) && c.Op != tree.Times {
			return "it was changed on the host since", nil
		}
	}
	return "", nil
}
