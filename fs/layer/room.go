package layer

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// room refuses a commit for which there is no room, before it has begun.
func (l *Layers) room(tx *Transaction, changes []change) error {
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		var bytes, inodes int64
		for j := range changes {
			c := &changes[j]
			if c.w != w || c.Op == tree.Delete {
				continue
			}
			inodes++
			if c.Kind == tree.File && c.Op != tree.Meta && c.Op != tree.Times {
				bytes += c.Blocks
			}
		}
		base, err := l.base(w)
		if err != nil {
			return err
		}
		var fs unix.Statfs_t
		if err := unix.Fstatfs(int(base.Fd()), &fs); err != nil {
			return fmt.Errorf("stat file system of layers: %w", err)
		}
		// A file system that counts no inodes says that it has none at all.
		if int64(fs.Bavail)*fs.Bsize < bytes || fs.Files > 0 && int64(fs.Ffree) < inodes { //nolint:gosec // numbers of blocks
			return fmt.Errorf("transaction %d wants %d bytes and %d files more in the layer of %q: %w", tx.N, bytes, inodes, w.Destination, unix.ENOSPC)
		}
	}
	return nil
}

// Room returns what the file system of a workspace's layers says that it has left. The error is ErrNotExist if no workspace
// is there.
func (l *Layers) Room(destination string) (unix.Statfs_t, error) {
	var fs unix.Statfs_t
	i := slices.IndexFunc(l.Workspaces, func(w Workspace) bool { return w.Destination == destination })
	if i < 0 {
		return fs, fmt.Errorf("workspace %q: %w", destination, ErrNotExist)
	}
	base, err := l.base(&l.Workspaces[i])
	if err != nil {
		return fs, err
	}
	if err := unix.Fstatfs(int(base.Fd()), &fs); err != nil {
		return fs, fmt.Errorf("stat file system of layers: %w", err)
	}
	return fs, nil
}

// fail keeps a transaction that could not be committed; the views are as if it had not been. Where a quota is the cause,
// what it wrote is thrown away: the room that it takes is the task's, which could not go on without.
func (l *Layers) fail(tx *Transaction, cause error) error {
	tx.Status, tx.Reason, l.Pending = StatusFailed, cause.Error(), nil
	delete(l.notes, tx.N) // what layer.json says counts now
	bounded := slices.ContainsFunc(l.Workspaces, func(w Workspace) bool { return w.Quota != Quota{} })
	if bounded && errors.Is(cause, unix.ENOSPC) {
		tx.Dropped = true
		return errors.Join(l.save(), l.removeDirs(txDir(tx.N)))
	}
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		if err := l.removeDir(w, txUndo(tx.N, w)); err != nil {
			return errors.Join(cause, err)
		}
	}
	return l.save()
}

// takeBack makes the views again what they were before a commit that failed half-way. If that fails, too, it is left to
// whoever opens the layers next.
func (l *Layers) takeBack(tx *Transaction, cause error) error {
	l.Pending = &Pending{Op: opTakeBack, N: tx.N, Reason: cause.Error()}
	if err := errors.Join(l.save(), l.apply(tx, txUndo)); err != nil {
		return fmt.Errorf("commit transaction %d: %w", tx.N, errors.Join(cause, err))
	}
	return l.fail(tx, cause)
}

// Stuck is why an operation that was interrupted can't be completed at present: the disk is full, the host's folder is
// read-only. Until it can, the layers can be looked at and not changed; nil if nothing is in the way.
func (l *Layers) Stuck() error { return l.stuck }

// retry commits a transaction again that has failed.
func (l *Layers) retry(tx *Transaction) error {
	if tx.Dropped {
		return fmt.Errorf("redo transaction %d: what it wrote was thrown away: %s", tx.N, tx.Reason)
	}
	tx.Status, tx.Reason = StatusOpen, ""
	if err := l.Finish(tx.N, tx.Exit); err != nil {
		return err
	}
	if tx.Status != StatusCommitted {
		return fmt.Errorf("redo transaction %d: it is %s: %s", tx.N, tx.Status, tx.Reason)
	}
	return nil
}
