package layer

import (
	"fmt"
	"maps"
	"slices"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// Compared is how a workspace differs between two moments. Its trees are open until the layers' Comparison is closed.
type Compared struct {
	Workspace Workspace
	Old, New  tree.Root
	Changes   []tree.Change
}

// Comparison is a list of Compared with what they hold open.
type Comparison struct {
	List  []Compared
	close []func()
}

// Close releases the trees.
func (c *Comparison) Close() {
	for _, f := range c.close {
		f()
	}
}

func (c *Comparison) open(l *Layers, w *Workspace, name string) (tree.Root, error) {
	r, closeRoot, err := l.upper(w, name)
	c.close = append(c.close, closeRoot)
	return r, err
}

// CompareHost compares the workspaces with the folders of the host.
func (l *Layers) CompareHost() (*Comparison, error) {
	c := &Comparison{}
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		host, err := l.lower(w)
		if err != nil {
			c.Close()
			return nil, err
		}
		c.close = append(c.close, func() { host.Close() })
		upper, err := c.open(l, w, upperDir(w))
		if err == nil {
			err = c.add(w, tree.NewRoot(host), upper, tree.ListOptions{})
		}
		if err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

func (c *Comparison) add(w *Workspace, old, changed tree.Root, o tree.ListOptions) error {
	list, err := tree.List(changed, old, o)
	if err != nil {
		return err
	}
	if o.Below != nil {
		// Directories on the way to what was asked for, and what others put beside it, are not meant.
		list = slices.DeleteFunc(list, func(ch tree.Change) bool { return !slices.Contains(o.Below, ch.Path) })
	}
	c.List = append(c.List, Compared{*w, old, changed, list})
	return nil
}

// CompareRange compares the workspaces before transaction from with those after transaction to. Between them, those that
// were committed count; a single one counts whatever became of it.
func (l *Layers) CompareRange(from, to int) (*Comparison, error) {
	first, err := l.find(from)
	if err != nil {
		return nil, err
	}
	if from == to {
		return l.compareOne(first)
	}
	if _, err := l.find(to); err != nil {
		return nil, err
	}
	if from > to {
		return nil, fmt.Errorf("transactions %d..%d: the first is later than the last", from, to)
	}
	c := &Comparison{}
	for i := range l.Workspaces {
		if err := l.compareSpan(c, &l.Workspaces[i], from, to); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

func (l *Layers) compareOne(tx *Transaction) (*Comparison, error) {
	c := &Comparison{}
	if tx.Changes == 0 || tx.Dropped {
		return c, nil
	}
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		upper, err := c.open(l, w, txUpper(tx.N, w))
		if err != nil {
			c.Close()
			return nil, err
		}
		var old tree.Root
		if tx.Status == StatusCommitted || tx.Status == StatusUndone {
			old, err = c.open(l, w, txUndo(tx.N, w))
		} else {
			old, err = l.view(w)
		}
		if err == nil {
			err = c.add(w, old, upper, tree.ListOptions{})
		}
		if err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// compareSpan compares each path between the first transaction that touched it and the last.
func (l *Layers) compareSpan(c *Comparison, w *Workspace, from, to int) error {
	type span struct{ first, last int }
	spans := map[string]span{}
	for i := range l.Transactions {
		tx := &l.Transactions[i]
		if tx.N < from || tx.N > to || tx.Status != StatusCommitted || tx.Changes == 0 {
			continue
		}
		list, err := l.txChanges(tx, w)
		if err != nil {
			return err
		}
		for _, ch := range list {
			s, seen := spans[ch.Path]
			if !seen {
				s.first = tx.N
			}
			s.last = tx.N
			spans[ch.Path] = s
		}
	}
	groups := map[span][]string{}
	for p, s := range spans {
		groups[s] = append(groups[s], p)
	}
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b span) int { return (a.first-b.first)<<16 + a.last - b.last })
	for _, s := range keys {
		slices.Sort(groups[s])
		old, err := c.open(l, w, txUndo(s.first, w))
		if err != nil {
			return err
		}
		upper, err := c.open(l, w, txUpper(s.last, w))
		if err != nil {
			return err
		}
		if err := c.add(w, old, upper, tree.ListOptions{Below: groups[s]}); err != nil {
			return err
		}
	}
	return nil
}
