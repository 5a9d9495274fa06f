package layer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// Commit rules of a profile; the empty one is CommitAlways.
const (
	CommitAlways  = "always"
	CommitSuccess = "success"
	CommitNever   = "never"
)

// Begin makes the layer of a new transaction and notes it. Mount gives its views; Process notes who runs in them.
func (l *Layers) Begin(command []string, rule string) (*Transaction, error) {
	const here = "t/new"
	if l.stuck != nil {
		return nil, l.stuck
	}
	if err := l.Reserve(here); err != nil {
		return nil, err
	}
	return l.BeginReserved(here, &Transaction{Command: command, Commit: rule})
}

// Ready is where a transaction is reserved by whoever supervises the container, the only one who uses that name.
const Ready = "t/ready"

// Reserve makes the layer of a transaction that has no number yet, under a name of the caller's, in place of what is there.
// Mount gives its views, in which nobody may look before it has begun.
func (l *Layers) Reserve(name string) error {
	err := l.removeDirs(name)
	if err == nil {
		err = l.makeDirs(name)
	}
	for i := 0; err == nil && i < len(l.Workspaces); i++ {
		w := &l.Workspaces[i]
		for _, d := range []string{name + "/" + w.Name, upperIn(name, w), workIn(name, w), undoIn(name, w)} {
			if err = l.makeDir(w, d); err != nil {
				break
			}
		}
	}
	if err == nil {
		_, err = l.alignReserved(name, true)
	}
	if err == nil {
		// With all the room that it needs.
		err = errors.Join(l.writeNote(name, &Transaction{Status: StatusOpen}), l.writeMark(name, nil))
	}
	if err != nil {
		return errors.Join(err, l.removeDirs(name))
	}
	return nil
}

// alignReserved gives the roots of a reserved layer the owners and modes of the views' roots, or makes sure that they have
// them, and returns the time.
func (l *Layers) alignReserved(name string, set bool) (since int64, err error) {
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		var base, own unix.Stat_t
		if err := l.stat(w, upperDir(w), &base); err != nil {
			return 0, err
		}
		upper, err := l.open(w, upperIn(name, w))
		if err != nil {
			return 0, err
		}
		err = unix.Fstat(int(upper.Fd()), &own)
		if differ := own.Uid != base.Uid || own.Gid != base.Gid || own.Mode != base.Mode; err == nil && differ {
			if err = unix.ESTALE; set {
				err = likeDir(upper, &base)
			}
		}
		if err == nil {
			since, err = clock(upper)
		}
		upper.Close()
		if err != nil {
			return 0, fmt.Errorf("prepare layer: %w", err)
		}
	}
	return since, nil
}

// BeginReserved begins a transaction on the layer that was reserved under a name, and notes it. like has its command,
// its rule, and its first process, or whoever starts that.
func (l *Layers) BeginReserved(name string, like *Transaction) (*Transaction, error) {
	if l.stuck != nil {
		return nil, l.stuck
	}
	if err := l.archive(); err != nil {
		return nil, err
	}
	tx := *like
	tx.N, tx.Started, tx.Status = 1, time.Now().UTC(), StatusOpen
	if k := len(l.Transactions); k > 0 {
		tx.N = l.Transactions[k-1].N + 1
	}
	var err error
	if tx.Since, err = l.alignReserved(name, false); err != nil {
		return nil, err
	}
	// Left by a crash before the state knew of it.
	if err := l.removeDirs(txDir(tx.N)); err != nil {
		return nil, err
	}
	if err := l.writeNote(name, &tx); err != nil {
		return nil, err
	}
	if err := l.renameDirs(name, txDir(tx.N)); err != nil {
		return nil, errors.Join(err, l.removeDirs(txDir(tx.N)))
	}
	l.note(tx.N)
	l.Transactions = append(l.Transactions, tx)
	return &l.Transactions[len(l.Transactions)-1], nil
}

// Dir is where a transaction's layer lies.
func (tx *Transaction) Dir() string { return txDir(tx.N) }

// maxLog bounds the log: a health check is an exec every few seconds.
const maxLog = 1000

// forget drops the oldest transactions that changed nothing, when there are more than maxLog in all.
func (l *Layers) forget() {
	over := len(l.Transactions) - maxLog + 1
	l.Transactions = slices.DeleteFunc(l.Transactions, func(tx Transaction) bool {
		if over <= 0 || tx.Changes > 0 || tx.Status != StatusCommitted {
			return false
		}
		over--
		return true
	})
}

// Process notes the first process of a transaction.
func (l *Layers) Process(tx *Transaction, pid int, start uint64) error {
	tx.PID, tx.PIDStart = pid, start
	return l.writeNote(tx.Dir(), tx)
}

// Abandon removes a transaction whose process never ran.
func (l *Layers) Abandon(n int) error {
	tx, err := l.find(n)
	if err != nil {
		return l.removeDirs(txDir(n))
	}
	if tx.Status != StatusOpen {
		return nil
	}
	if k := len(l.Transactions); l.Transactions[k-1].N == n {
		// A transaction without a note that layer.json does not have is none.
		err := unix.Unlinkat(int(l.dir.Fd()), txDir(n)+"/"+noteFile, 0)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("abandon transaction %d: %w", n, err)
		}
		l.Transactions = l.Transactions[:k-1]
	} else { // a gap would hide those that have begun since
		tx.Status, tx.Reason, tx.Ended = StatusDiscarded, "its command did not start", time.Now().UTC()
	}
	if err := l.save(); err != nil {
		return err
	}
	return l.removeDirs(txDir(n))
}

// find returns a transaction by its number.
func (l *Layers) find(n int) (*Transaction, error) {
	for i := range l.Transactions {
		if l.Transactions[i].N == n {
			return &l.Transactions[i], nil
		}
	}
	return nil, fmt.Errorf("container %q has no transaction %d", l.ID, n)
}

// Settle decides on every open transaction whose process has ended and which nobody has decided on: its exit status is
// unknown then, so that one that commits on success alone is not committed.
func (l *Layers) Settle() error {
	if l.stuck != nil {
		return nil //nolint:nilerr // whoever wants to change something is told
	}
	for i := range l.Transactions {
		tx := &l.Transactions[i]
		if tx.Status != StatusOpen || sameProcess(tx.PID, tx.PIDStart) {
			continue
		}
		if err := l.Finish(tx.N, nil); err != nil {
			return err
		}
	}
	return nil
}

// Unsettled reports whether there is something for Settle to do.
func (l *Layers) Unsettled() bool {
	return slices.ContainsFunc(l.Transactions, func(tx Transaction) bool {
		return tx.Status == StatusOpen && !sameProcess(tx.PID, tx.PIDStart)
	})
}

// Finish decides on a transaction whose process has ended with a status, nil if nobody knows it: it is committed,
// discarded by the profile's rule, or kept as a conflict. One that changed nothing leaves no trace but its line in the
// log. A transaction that was decided on already is left alone.
func (l *Layers) Finish(n int, exit *int) error {
	later, err := l.Conclude(n, exit)
	if err == nil && later != nil {
		err = later()
	}
	return err
}

// Conclude is Finish, and leaves what can be done later, if there is something: nobody has to wait for the line in the log of
// a transaction that changed nothing, or whose mark says that it is committed. The layers stay open until that is done; if it
// never is, somebody else does it.
func (l *Layers) Conclude(n int, exit *int) (later func() error, err error) {
	tx, err := l.find(n)
	if err != nil || tx.Status != StatusOpen {
		return nil, err
	}
	if l.stuck != nil {
		return nil, l.stuck
	}
	tx.Exit, tx.Ended = exit, time.Now().UTC()
	commit := tx.Commit == "" || tx.Commit == CommitAlways || tx.Commit == CommitSuccess && exit != nil && *exit == 0
	changes, err := l.measure(tx)
	switch {
	case refusal(err):
		tx.Status, tx.Reason = StatusRefused, err.Error()
		return nil, l.save()
	case err != nil:
		return nil, err
	case !commit:
		tx.Status = StatusDiscarded
		return nil, l.save()
	case len(changes) == 0:
		tx.Status = StatusCommitted
		return func() error {
			if err := l.save(); err != nil {
				return err
			}
			return l.removeDirs(txDir(n))
		}, nil
	}
	if tx.Conflicts, err = l.conflicts(tx, changes); err != nil {
		return nil, err
	}
	if len(tx.Conflicts) > 0 {
		tx.Status = StatusConflict
		return nil, l.save()
	}
	return l.commit(tx, changes)
}

// refusal reports whether an error says that the layer is not one that agentsafe reads, however often one tries.
func refusal(err error) bool {
	return errors.Is(err, tree.ErrHostile) || errors.Is(err, tree.ErrTooMuch)
}

// change is a change of one workspace.
type change struct {
	w *Workspace
	tree.Change
}

// measure lists what a transaction changes, and counts it.
func (l *Layers) measure(tx *Transaction) ([]change, error) {
	var out []change
	tx.Changes, tx.Bytes = 0, 0
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		list, err := l.against(txUpper(tx.N, w), w, nil)
		if err != nil {
			return nil, err
		}
		for _, c := range list {
			out = append(out, change{w, c})
			if c.Op != tree.Times {
				tx.Changes++
			}
			if c.Op == tree.Add || c.Op == tree.Modify {
				tx.Bytes += c.New.Size
			}
		}
	}
	return out, nil
}

// against lists how a directory in an overlay's format differs from the view of a workspace.
func (l *Layers) against(dir string, w *Workspace, whole map[string]bool) ([]tree.Change, error) {
	v, err := l.view(w)
	if err != nil {
		return nil, err
	}
	upper, closeUpper, err := l.upper(w, dir)
	if err != nil {
		return nil, err
	}
	defer closeUpper()
	return tree.List(upper, v, tree.ListOptions{Whole: whole})
}

// commit applies a transaction to the views. What it replaces is kept first. If there is no room for that, or something
// else fails, the views are as before, and the transaction is kept as one that has failed. later is as with Conclude.
func (l *Layers) commit(tx *Transaction, changes []change) (later func() error, err error) {
	if err = l.capture(tx, changes); err == nil {
		err = l.room(tx, changes)
	}
	if err != nil {
		return nil, l.fail(tx, err)
	}
	marked := l.notes[tx.N]
	l.Pending = &Pending{Op: opCommit, N: tx.N}
	if marked {
		err = l.markNow(tx, false)
	} else {
		err = l.save()
	}
	if err != nil {
		l.Pending = nil
		return nil, err
	}
	if err := l.applyChanges(tx, changes); err != nil {
		return nil, l.takeBack(tx, err)
	}
	tx.Status, l.Pending = StatusCommitted, nil
	if !marked {
		return nil, l.save()
	}
	if err := l.markNow(tx, true); err != nil {
		return nil, errors.Join(err, l.save())
	}
	return l.save, nil
}

// capture keeps what the views have at the paths that a transaction changes, in a directory that is complete or absent.
func (l *Layers) capture(tx *Transaction, changes []change) error {
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		if err := l.emptyDir(w, txUndo(tx.N, w)); err != nil {
			return err
		}
		if err := l.captureWorkspace(tx, w, changes); err != nil {
			return err
		}
	}
	return nil
}

func (l *Layers) captureWorkspace(tx *Transaction, w *Workspace, changes []change) error {
	v, err := l.view(w)
	if err != nil {
		return err
	}
	undo, closeUndo, err := l.upper(w, txUndo(tx.N, w))
	if err != nil {
		return err
	}
	defer closeUndo()
	done := "\x00" // what is below a path that is kept as a whole
	for i := range changes {
		c := &changes[i]
		if c.w != w || strings.HasPrefix(c.Path, done) {
			continue
		}
		alone := c.Kind == tree.Dir && (c.Op == tree.Meta || c.Op == tree.Times)
		if err := tree.Capture(v, undo, c.Path, alone); err != nil {
			return err
		}
		if !alone {
			done = c.Path + "/"
		}
	}
	return nil
}

// apply makes the views what one of a transaction's directories says. It can be repeated: what is done already is no
// difference any more.
func (l *Layers) apply(tx *Transaction, dir func(int, *Workspace) string) error {
	for i := range l.Workspaces {
		if err := l.applyWorkspace(&l.Workspaces[i], dir(tx.N, &l.Workspaces[i])); err != nil {
			return err
		}
	}
	return nil
}

// applyChanges is apply for what a transaction was found to change a moment ago.
func (l *Layers) applyChanges(tx *Transaction, changes []change) error {
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		list := make([]tree.Change, 0, len(changes))
		for j := range changes {
			if changes[j].w == w {
				list = append(list, changes[j].Change)
			}
		}
		if err := l.applyList(w, txUpper(tx.N, w), list); err != nil {
			return err
		}
	}
	return nil
}

func (l *Layers) applyWorkspace(w *Workspace, dir string) error {
	v, err := l.view(w)
	if err != nil {
		return err
	}
	upper, closeUpper, err := l.upper(w, dir)
	if err != nil {
		return err
	}
	list, err := tree.List(upper, v, tree.ListOptions{})
	closeUpper()
	if err != nil {
		return err
	}
	return l.applyList(w, dir, list)
}

func (l *Layers) applyList(w *Workspace, dir string, list []tree.Change) error {
	if len(list) == 0 {
		return nil
	}
	v, err := l.view(w)
	if err != nil {
		return err
	}
	upper, closeUpper, err := l.upper(w, dir)
	if err != nil {
		return err
	}
	defer closeUpper()
	lower, err := l.lower(w)
	if err == nil {
		defer lower.Close()
	}
	below := tree.NewRoot(lower) // without a folder nothing is below
	var writer tree.Writer
	// What goes makes room for what comes.
	for i := range list {
		if list[i].Op == tree.Delete {
			if err := writer.Remove(v, list[i].Path); err != nil {
				return err
			}
		}
	}
	for i := range list {
		c := &list[i]
		if c.Op == tree.Delete {
			continue
		}
		if err = writer.Put(upper, v, c.Path); err == nil && c.Kind == tree.File {
			if _, missing := below.Lstat(c.Path); missing == nil {
				err = v.MarkBelow(c.Path)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
