package layer

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
	"github.com/agentsafe/agentsafe/fs/rootfs"
)

// isCheckpointName says which names a checkpoint can have: they are names of directories.
func isCheckpointName(name string) bool {
	const most = 64
	plain := strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == ""
	return plain && name != "" && name[0] != '.' && name[0] != '-' && len(name) <= most
}

// SaveCheckpoint keeps a copy of the layers under a name. Its cost is that of what differs from the host.
func (l *Layers) SaveCheckpoint(name string) error {
	if !isCheckpointName(name) {
		return fmt.Errorf("checkpoint %q: want letters, digits, dot, dash and underscore", name)
	}
	for _, c := range l.Checkpoints {
		if c.Name == name {
			return fmt.Errorf("checkpoint %q exists: %w", name, unix.EEXIST)
		}
	}
	if l.stuck != nil {
		return l.stuck
	}
	if err := l.Settle(); err != nil {
		return err
	}
	if err := l.removeDirs(checkpointDir(name)); err != nil {
		return err
	}
	if err := l.makeDirs(checkpointDir(name)); err != nil {
		return err
	}
	for i := range l.Workspaces {
		if err := l.copyUpper(&l.Workspaces[i], name); err != nil {
			return fmt.Errorf("checkpoint %q: %w", name, errors.Join(err, l.removeDirs(checkpointDir(name))))
		}
	}
	c := Checkpoint{Name: name, Time: time.Now().UTC()}
	if n := len(l.Transactions); n > 0 {
		c.After = l.Transactions[n-1].N
	}
	l.Checkpoints = append(l.Checkpoints, c)
	return l.save()
}

func (l *Layers) copyUpper(w *Workspace, name string) error {
	if err := l.makeDir(w, checkpointUpper(name, w)); err != nil {
		return err
	}
	from, closeFrom, err := l.upper(w, upperDir(w))
	if err != nil {
		return err
	}
	defer closeFrom()
	to, closeTo, err := l.upper(w, checkpointUpper(name, w))
	if err != nil {
		return err
	}
	defer closeTo()
	return tree.CopyLayer(from, to)
}

// Restore makes the workspaces what they were at a checkpoint. It is a transaction of its own, so it can be undone.
func (l *Layers) Restore(name string) (*Transaction, error) {
	known := false
	for _, c := range l.Checkpoints {
		known = known || c.Name == name
	}
	if !known {
		return nil, fmt.Errorf("container %q has no checkpoint %q", l.ID, name)
	}
	return l.Apply([]string{"agentsafectl", "restore", name}, func(n int) error {
		for i := range l.Workspaces {
			if err := l.restoreInto(&l.Workspaces[i], name, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// restoreInto fills a transaction's upper with what differs between the view and the checkpoint's.
func (l *Layers) restoreInto(w *Workspace, name string, n int) error {
	then, closeThen, err := l.checkpointView(w, name)
	if err != nil {
		return err
	}
	defer closeThen()
	view, err := l.view(w)
	if err != nil {
		return err
	}
	into, closeInto, err := l.upper(w, txUpper(n, w))
	if err != nil {
		return err
	}
	defer closeInto()
	done := "\x00"
	for _, dir := range []string{upperDir(w), checkpointUpper(name, w)} {
		changed, closeChanged, err := l.upper(w, dir)
		if err != nil {
			return err
		}
		other := then
		if dir != upperDir(w) {
			other = view
		}
		list, err := tree.List(changed, other, tree.ListOptions{})
		closeChanged()
		if err != nil {
			return err
		}
		for _, c := range list {
			if c.Op == tree.Times || strings.HasPrefix(c.Path, done) {
				continue
			}
			alone := c.Kind == tree.Dir && c.Op == tree.Meta
			if err := tree.Capture(then, into, c.Path, alone); err != nil {
				return err
			}
			if !alone {
				done = c.Path + "/"
			}
		}
	}
	return nil
}

// checkpointView mounts what the workspace was.
func (l *Layers) checkpointView(w *Workspace, name string) (tree.Root, func(), error) {
	none := func() {}
	host, err := l.lower(w)
	if err != nil {
		return tree.Root{}, none, err
	}
	defer host.Close()
	upper, err := l.open(w, checkpointUpper(name, w))
	if err != nil {
		return tree.Root{}, none, err
	}
	defer upper.Close()
	o := rootfs.Overlay{Lower: []*os.File{upper, host}}
	f, err := o.Open()
	if err != nil {
		return tree.Root{}, none, fmt.Errorf("checkpoint %q: %w", name, err)
	}
	defer f.Close()
	dir, err := reopen(f)
	if err != nil {
		return tree.Root{}, none, err
	}
	return tree.NewRoot(dir), func() { dir.Close() }, nil
}

// Apply makes a transaction of what fill writes into its upper directories, and commits it.
func (l *Layers) Apply(command []string, fill func(n int) error) (*Transaction, error) {
	tx, err := l.Begin(command, CommitAlways)
	if err != nil {
		return nil, err
	}
	n := tx.N
	if err := fill(n); err != nil {
		l.Abandon(n) //nolint:errcheck // the first error is the one to report
		return nil, err
	}
	zero := 0
	if err := l.Finish(n, &zero); err != nil {
		return nil, err
	}
	return l.find(n)
}
