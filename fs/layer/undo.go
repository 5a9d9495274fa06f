package layer

import (
	"errors"
	"fmt"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// ErrConflict is a change that would overwrite what somebody else has changed since. It carries the paths.
var ErrConflict = errors.New("others have changed the same paths since")

// ConflictError lists the paths of a conflict.
type ConflictError struct {
	What      string
	Conflicts []Conflict
}

func (e *ConflictError) Error() string {
	c := e.Conflicts[0]
	more := ""
	if n := len(e.Conflicts) - 1; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%s: %q%s: %s: nothing was changed", e.What, c.Path, more, c.Reason)
}

func (e *ConflictError) Unwrap() error { return ErrConflict }

// conflicts compares a transaction with what happened to its paths since it began. Transactions that were committed
// meanwhile tell by their own lists; whoever else writes, tells by the time of the last change, which nobody can set.
func (l *Layers) conflicts(tx *Transaction, changes []change) ([]Conflict, error) {
	since := map[string]int{}
	for i := range l.Transactions {
		other := &l.Transactions[i]
		if other.N == tx.N || other.Changes == 0 || !other.Ended.After(tx.Started) ||
			other.Status != StatusCommitted && other.Status != StatusUndone {
			continue
		}
		for _, p := range l.touched(other) {
			since[p] = other.N
		}
	}
	var out []Conflict
	gone := map[string]bool{} // workspaces in which something was deleted, or renamed
	for i := range changes {
		if changes[i].Op == tree.Delete {
			gone[changes[i].w.Name] = true
		}
	}
	for i := range changes {
		c := &changes[i]
		if n, hit := since[c.w.Name+"/"+c.Path]; hit && !addsDir(c) {
			out = append(out, Conflict{c.w.Destination, c.Path, fmt.Sprintf("transaction %d has changed it meanwhile", n)})
			continue
		}
		reason, err := l.changedSince(c, tx.Since, gone[c.w.Name])
		if err != nil {
			return nil, err
		}
		if reason != "" {
			out = append(out, Conflict{c.w.Destination, c.Path, reason})
		}
	}
	return out, nil
}

// addsDir reports whether a change adds a directory, which is no conflict with another who added it.
func addsDir(c *change) bool { return c.Kind == tree.Dir && c.Op != tree.Delete }

// changedSince says, in words, that a path in the view was changed after a time; "" if not. A file that came from below
// and is not there any more was deleted meanwhile, or has been renamed: renamed is what a transaction can have done that
// leaves a deletion. Taking a deletion for a renaming overwrites nothing.
func (l *Layers) changedSince(c *change, since int64, renamed bool) (string, error) {
	v, err := l.view(c.w)
	if err != nil {
		return "", err
	}
	if c.Old == (tree.Attr{}) && c.Was == "" && c.Op != tree.Delete {
		if c.CopiedUp && !renamed {
			return "it was deleted meanwhile", nil
		}
		return "", nil
	}
	if addsDir(c) && c.Was == tree.Dir {
		return "", nil
	}
	changed, err := tree.ChangedSince(v, c.Path, since)
	if err != nil || !changed {
		return "", err
	}
	return "a process outside of transactions, or the host, has changed it meanwhile", nil
}

// touched returns the paths that a transaction changed, with the workspace's name in front.
func (l *Layers) touched(tx *Transaction) []string {
	var out []string
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		list, err := l.txChanges(tx, w)
		if err != nil {
			continue
		}
		for _, c := range list {
			out = append(out, w.Name+"/"+c.Path)
		}
	}
	return out
}

// txChanges lists what a committed transaction changed in a workspace: its own layer against what it replaced.
func (l *Layers) txChanges(tx *Transaction, w *Workspace) ([]tree.Change, error) {
	upper, closeUpper, err := l.upper(w, txUpper(tx.N, w))
	if err != nil {
		return nil, err
	}
	defer closeUpper()
	undo, closeUndo, err := l.upper(w, txUndo(tx.N, w))
	if err != nil {
		return nil, err
	}
	defer closeUndo()
	return tree.List(upper, undo, tree.ListOptions{})
}

// Undo takes a committed transaction back. It is refused with a ConflictError, and nothing is changed, where its paths
// are not as it left them.
func (l *Layers) Undo(n int) error {
	return l.turn(n, opUndo, StatusCommitted, StatusUndone, txUpper, txUndo)
}

// Redo applies a transaction that was undone again. One that has failed is committed.
func (l *Layers) Redo(n int) error {
	if tx, err := l.find(n); err == nil && tx.Status == StatusFailed && l.stuck == nil {
		return l.retry(tx)
	}
	return l.turn(n, opRedo, StatusUndone, StatusCommitted, txUndo, txUpper)
}

// turn moves a transaction from one status to the other if the views are what is expects.
func (l *Layers) turn(n int, op string, from, to Status, is, becomes func(int, *Workspace) string) error {
	if l.stuck != nil {
		return l.stuck
	}
	tx, err := l.find(n)
	if err != nil {
		return err
	}
	if tx.Status != from {
		return fmt.Errorf("%s transaction %d: it is %s, not %s", op, n, tx.Status, from)
	}
	if tx.Changes == 0 {
		tx.Status = to
		return l.save()
	}
	conflicts, err := l.moved(tx, is)
	if err != nil {
		return fmt.Errorf("%s transaction %d: %w", op, n, err)
	}
	if len(conflicts) > 0 {
		return &ConflictError{fmt.Sprintf("%s transaction %d", op, n), conflicts}
	}
	l.Pending = &Pending{Op: op, N: n}
	if err := l.save(); err != nil {
		l.Pending = nil
		return err
	}
	if err := l.apply(tx, becomes); err != nil {
		// Back to what it was; if there is no room for that either, the next who opens the layers goes on.
		if back := l.apply(tx, is); back != nil {
			return fmt.Errorf("%s transaction %d: %w", op, n, errors.Join(err, back))
		}
		l.Pending = nil
		return errors.Join(fmt.Errorf("%s transaction %d: nothing was changed: %w", op, n, err), l.save())
	}
	tx.Status, l.Pending = to, nil
	return l.save()
}

// moved lists where the views are not what a directory of a transaction says. Directories that it added count as wholes:
// what others have put into them is a conflict.
func (l *Layers) moved(tx *Transaction, dir func(int, *Workspace) string) ([]Conflict, error) {
	var out []Conflict
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		changes, err := l.txChanges(tx, w)
		if err != nil {
			return nil, err
		}
		whole := map[string]bool{}
		for _, c := range changes {
			if c.Op == tree.Add && c.Kind == tree.Dir {
				whole[c.Path] = true
			}
		}
		list, err := l.against(dir(tx.N, w), w, whole)
		if err != nil {
			return nil, err
		}
		for _, c := range list {
			if c.Op != tree.Times {
				out = append(out, Conflict{w.Destination, c.Path, "it was changed since"})
			}
		}
	}
	return out, nil
}

// recover completes what a crash interrupted: the new state of the views is known, and applying it can be repeated.
func (l *Layers) recover() error {
	p := l.Pending
	if p == nil {
		return nil
	}
	if p.Op == opPromote {
		return l.recoverPromotion()
	}
	tx, err := l.find(p.N)
	if err != nil {
		return err
	}
	dir, to := txUpper, StatusCommitted
	if p.Op == opUndo || p.Op == opTakeBack {
		dir, to = txUndo, StatusUndone
	}
	err = l.apply(tx, dir)
	if err != nil && p.Op == opCommit {
		return l.takeBack(tx, err)
	}
	if err != nil {
		return err
	}
	if p.Op == opTakeBack {
		return l.fail(tx, errors.New(p.Reason))
	}
	tx.Status, l.Pending = to, nil
	return l.save()
}
