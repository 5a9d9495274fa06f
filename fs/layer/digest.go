package layer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// Digest returns the sha256 of what a transaction changed: paths, operations, kinds, modes, owners, and the contents
// afterwards. Its cost is that of the changed bytes. A transaction that changed nothing has no digest.
func (l *Layers) Digest(n int) (string, error) {
	cmp, err := l.CompareRange(n, n)
	if err != nil {
		return "", err
	}
	defer cmp.Close()
	h, changes := sha256.New(), 0
	for i := range cmp.List {
		c := &cmp.List[i]
		for j := range c.Changes {
			ch := &c.Changes[j]
			changes++
			fmt.Fprintf(h, "%q %q %s %s %o %d %d\n", c.Workspace.Destination, ch.Path, ch.Op, ch.Kind, ch.New.Mode, ch.New.UID, ch.New.GID)
			if ch.Op == tree.Delete || ch.Op == tree.Times {
				continue
			}
			if err := hashFile(h, c.New, ch.Kind, ch.Path); err != nil {
				return "", fmt.Errorf("hash %q: %w", ch.Path, err)
			}
		}
	}
	if changes == 0 {
		return "", nil
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// hashFile adds the content of a changed file, or the target of a symlink.
func hashFile(h io.Writer, root tree.Root, kind tree.Kind, path string) error {
	switch kind {
	case tree.Symlink:
		target, err := root.Readlink(path)
		fmt.Fprintf(h, "%q\n", target)
		return err
	case tree.File:
		f, err := root.OpenFile(path)
		if err != nil {
			return err
		}
		defer f.Close()
		n, err := io.Copy(h, f)
		fmt.Fprintf(h, "\n%d\n", n)
		return err
	default:
		return nil
	}
}
