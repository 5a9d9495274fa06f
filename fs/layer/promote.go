package layer

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// promotion is the journal of a promotion. New contents are staged in one directory of the host's folder; then each is
// exchanged with what stands at its path, so that what was there can be put back until the end.
type promotion struct {
	Stage string          `json:"stage"` // name of the directory in each folder
	Swap  bool            `json:"swap"`  // everything is staged
	Items []promotionItem `json:"items"`
}

type promotionItem struct {
	Workspace string `json:"workspace"` // name
	Path      string `json:"path"`
	Op        string `json:"op"` // put, mkdir, remove
	Merged    bool   `json:"merged,omitempty"`

	plan *Item // nil after a crash, when everything is staged
}

const (
	opPut    = "put"
	opMkdir  = "mkdir"
	opRemove = "remove"
)

// errHalfWritten is a promotion that could be neither completed nor taken back.
var errHalfWritten = errors.New("it could be neither completed nor taken back")

const stagePrefix = ".agentsafe-promote-"

// Promote writes a plan to the host: as the owner of each folder, beneath it by handle, atomically for each file, and
// all or nothing. It is refused with a ConflictError if the plan has conflicts, or if what it would write is not what was
// planned any more.
func (l *Layers) Promote(plan *PromotionPlan) error {
	if l.stuck != nil {
		return l.stuck
	}
	if c := plan.Conflicts(); len(c) > 0 {
		return &ConflictError{"promote", c}
	}
	taken := plan.Taken()
	if len(taken) == 0 {
		return errLeft
	}
	if digest, err := l.digest(plan); err != nil || digest != plan.Digest {
		return fmt.Errorf("promote: the layer has changed since the plan was made: %w", errors.Join(err, ErrConflict))
	}
	p := newPromotion(taken)
	l.Pending = &Pending{Op: opPromote, Promotion: p}
	if err := l.save(); err != nil {
		l.Pending = nil
		return err
	}
	if err := l.runPromotion(p, plan.Digest); errors.Is(err, errHalfWritten) {
		return fmt.Errorf("promote: the next command on these layers completes it: %w", err)
	} else if err != nil {
		l.Pending = nil
		return errors.Join(fmt.Errorf("promote: %w", err), l.save())
	}
	l.Pending = nil
	return l.save()
}

func newPromotion(taken []Item) *promotion {
	var random [8]byte
	rand.Read(random[:])
	p := &promotion{Stage: stagePrefix + hex.EncodeToString(random[:])}
	for i := range taken {
		op := opPut
		switch {
		case !taken[i].writes():
			continue
		case taken[i].Op == tree.Delete:
			op = opRemove
		case taken[i].Kind == tree.Dir:
			op = opMkdir
		}
		p.Items = append(p.Items, promotionItem{taken[i].w.Name, taken[i].Path, op, taken[i].Merged, &taken[i]})
	}
	return p
}

// runPromotion stages, swaps and cleans up. On an error everything is as before, unless it is errHalfWritten.
func (l *Layers) runPromotion(p *promotion, digest string) error {
	t, err := l.openTargets(p)
	if err != nil {
		return err
	}
	defer t.close()
	err = t.stage(l)
	if err == nil {
		err = t.verify(digest)
	}
	if err != nil {
		return errors.Join(err, t.clean())
	}
	p.Swap = true
	if err := l.save(); err != nil {
		return errors.Join(err, t.clean())
	}
	for i := range p.Items {
		if err := t.swap(i); err != nil {
			if back := t.rollBack(i); back != nil {
				// What was taken away lies in the staging directory alone: it stays until all is in place.
				return errors.Join(err, back, errHalfWritten)
			}
			return errors.Join(err, t.clean())
		}
	}
	t.remember(l)
	return t.clean()
}

// recoverPromotion completes a promotion whose contents were all staged, and removes the traces of one whose were not.
func (l *Layers) recoverPromotion() error {
	p := l.Pending.Promotion
	t, err := l.openTargets(p)
	if err != nil {
		return err
	}
	defer t.close()
	// Without a staging directory everything was in place, and what the host has done since is not ours.
	if p.Swap && t.staged() {
		for i := range p.Items {
			if done, err := t.swapped(i); err != nil {
				return err
			} else if done {
				continue
			}
			if err := t.swap(i); err != nil {
				return err
			}
		}
		t.remember(l)
	}
	if err := t.clean(); err != nil {
		return err
	}
	l.Pending = nil
	return l.save()
}

// targets are the folders of the host that a promotion writes to.
type targets struct {
	*promotion
	folders map[string]*target
}

type target struct {
	w     *Workspace
	host  *os.File
	root  tree.Root
	owner *owner
}

func (l *Layers) openTargets(p *promotion) (*targets, error) {
	t := &targets{promotion: p, folders: map[string]*target{}}
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		needed := false
		for _, item := range p.Items {
			needed = needed || item.Workspace == w.Name
		}
		if !needed {
			continue
		}
		host, err := w.host()
		if err != nil {
			t.close()
			return nil, err
		}
		var st unix.Stat_t
		if err = unix.Fstat(int(host.Fd()), &st); err != nil {
			host.Close()
			t.close()
			return nil, fmt.Errorf("stat folder %q: %w", w.Source, err)
		}
		o, err := newOwner(st.Uid, st.Gid)
		if err != nil {
			host.Close()
			t.close()
			return nil, err
		}
		t.folders[w.Name] = &target{w, host, tree.NewRoot(host), o}
	}
	return t, nil
}

func (t *targets) close() {
	for _, f := range t.folders {
		f.owner.close()
		f.host.Close()
	}
}

// Names in the staging directory: what is new, and what was taken away.
func newName(i int) string { return "new-" + strconv.Itoa(i) }
func oldName(i int) string { return "old-" + strconv.Itoa(i) }

func (t *targets) stage(l *Layers) error {
	for _, f := range t.folders {
		err := f.owner.do(func() error { return unix.Mkdirat(int(f.host.Fd()), t.Stage, 0o700) })
		if err != nil {
			return fmt.Errorf("make %s in %q: %w", t.Stage, f.w.Source, err)
		}
	}
	for i, item := range t.Items {
		if item.Op != opPut {
			continue
		}
		f := t.folders[item.Workspace]
		w := tree.Writer{Plain: true, Do: f.owner.do}
		if item.Merged {
			if err := w.Create(f.root, t.Stage+"/"+newName(i), item.plan.merged, item.plan.New.Mode); err != nil {
				return err
			}
			continue
		}
		upper, closeUpper, err := l.upper(f.w, upperDir(f.w))
		if err != nil {
			return err
		}
		err = w.PutAs(upper, item.Path, f.root, t.Stage+"/"+newName(i))
		closeUpper()
		if err != nil {
			return err
		}
	}
	return nil
}

// verify makes sure that what was staged is what was planned: the task may still write while it is copied, and what
// somebody has looked at is what reaches the host (TestAttack_ChangedWhileStaged).
func (t *targets) verify(digest string) error {
	h := sha256.New()
	for i := range t.Items {
		item := &t.Items[i]
		plan := *item.plan
		root, path := t.folders[item.Workspace].root, t.Stage+"/"+newName(i)
		if item.Op == opPut {
			kind, attr, err := root.KindAt(path)
			if err != nil {
				return fmt.Errorf("verify %q: %w", item.Path, err)
			}
			plan.Kind = kind
			if kind == tree.File && !item.Merged {
				plan.New.Mode = attr.Mode
			}
		}
		if err := plan.hash(h, root, path); err != nil {
			return fmt.Errorf("verify %q: %w", item.Path, err)
		}
	}
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != digest {
		return fmt.Errorf("the task has changed the layer while it was copied: %w", ErrConflict)
	}
	return nil
}

// staged reports whether a staging directory is still there: it goes last.
func (t *targets) staged() bool {
	for _, f := range t.folders {
		if f.root.IsDir(t.Stage) {
			return true
		}
	}
	return false
}

// swap moves one item into place, and what was there into the staging directory.
func (t *targets) swap(i int) error {
	item := t.Items[i]
	f := t.folders[item.Workspace]
	err := f.owner.do(func() error {
		switch item.Op {
		case opMkdir:
			return f.root.Exchange("", t.Stage+"/"+oldName(i), item.Path)
		case opRemove:
			return f.root.MoveAway(item.Path, t.Stage+"/"+oldName(i))
		}
		return f.root.Exchange(t.Stage+"/"+newName(i), t.Stage+"/"+oldName(i), item.Path)
	})
	if err != nil {
		return fmt.Errorf("%q: %w", item.Path, err)
	}
	return nil
}

// swapped reports whether an item was moved into place before a crash.
func (t *targets) swapped(i int) (bool, error) {
	item := t.Items[i]
	f := t.folders[item.Workspace]
	done := false
	err := f.owner.do(func() error {
		switch item.Op {
		case opRemove:
			_, err := f.root.Lstat(item.Path)
			done = tree.Missing(err)
		case opMkdir:
			done = f.root.IsDir(item.Path)
		default:
			_, err := f.root.Lstat(t.Stage + "/" + newName(i))
			done = tree.Missing(err)
		}
		return nil
	})
	return done, err
}

// rollBack undoes the swaps before item n, and n itself as far as it came.
func (t *targets) rollBack(n int) error {
	var failed error
	for i := n; i >= 0; i-- {
		item := t.Items[i]
		f := t.folders[item.Workspace]
		failed = errors.Join(failed, f.owner.do(func() error {
			staged := ""
			if item.Op == opPut {
				staged = t.Stage + "/" + newName(i)
			}
			return f.root.PutBack(staged, t.Stage+"/"+oldName(i), item.Path, i < n || item.Op == opRemove)
		}))
	}
	return failed
}

// remember notes what was written, so that it is not taken for a change of the host's. A merged text holds some of the
// host's, which the layer's lacks.
func (t *targets) remember(l *Layers) {
	if l.Promoted == nil {
		l.Promoted = map[string]Stamp{}
	}
	for _, item := range t.Items {
		if item.Merged {
			continue
		}
		st, err := t.folders[item.Workspace].root.Lstat(item.Path)
		if err == nil {
			l.Promoted[item.Workspace+"/"+item.Path] = Stamp{st.Ino, st.Ctim.Nano()}
		}
	}
}

// clean removes the staging directories with what was replaced.
func (t *targets) clean() error {
	var failed error
	for _, f := range t.folders {
		var w tree.Writer
		failed = errors.Join(failed, f.owner.do(func() error { return w.Remove(f.root, t.Stage) }))
	}
	return failed
}
