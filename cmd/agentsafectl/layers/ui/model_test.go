package ui

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// fake is a container with two transactions and three changes.
type fake struct {
	log      []layer.Transaction
	promoted []string
}

func (f *fake) actions() Actions {
	item := func(path, flag, conflict string) layer.Item {
		i := layer.Item{Workspace: "/job", Change: tree.Change{Path: path, Op: tree.Add, Kind: tree.File}, Flag: flag, Conflict: conflict}
		if flag != "" {
			i.Left = flag
		}
		return i
	}
	return Actions{
		Log: func() ([]layer.Transaction, error) { return slices.Clone(f.log), nil },
		Diff: func(n int) ([]string, error) {
			return []string{"add file /job/a", "+one", "add file /job/b", "+two", strings.Repeat("x", n)}, nil
		},
		Turn: func(n int, undo bool) error {
			if n == 1 {
				return errors.New("others have changed the same paths")
			}
			f.log[n-1].Status = map[bool]layer.Status{true: layer.StatusUndone, false: layer.StatusCommitted}[undo]
			return nil
		},
		Plan: func() ([]layer.Item, error) {
			dir := item("d", "", "")
			dir.Kind = tree.Dir
			return []layer.Item{dir, item("a", "", ""), item(".git/hooks/x", "git runs it", ""), item("c\x1b[2J", "", "it was changed on the host since")}, nil
		},
		Promote: func(paths []string) (string, error) {
			f.promoted = paths
			return "written", nil
		},
	}
}

func start(t *testing.T) (*fake, *Model) {
	t.Helper()
	f := &fake{log: []layer.Transaction{
		{N: 1, Command: []string{"sh", "-c", "first"}, Status: layer.StatusCommitted, Changes: 1},
		{N: 2, Command: []string{"evil\x1b[2J\u202e"}, Status: layer.StatusCommitted, Changes: 2},
	}}
	m, err := New("id", f.actions(), false)
	if err != nil {
		t.Fatal(err)
	}
	return f, m
}

func (m *Model) keys(keys ...string) string {
	for _, k := range keys {
		m.press(k)
	}
	return m.text()
}

func TestWalk(t *testing.T) {
	f, m := start(t)
	if s := m.text(); strings.ContainsAny(s, "\x1b\u202e") || !strings.Contains(s, `evil\x1b[2J\u202e`) || !strings.Contains(s, "> everything") {
		t.Errorf("the log:\n%q", s)
	}
	if s := m.keys("down", "enter"); !strings.Contains(s, "transaction 2") || !strings.Contains(s, "+two") {
		t.Errorf("the diff:\n%s", s)
	}
	if s := m.keys("q", "u"); !strings.Contains(s, "transaction 2 is undone") || f.log[1].Status != layer.StatusUndone {
		t.Errorf("undo:\n%s", s)
	}
	if s := m.keys("u"); !strings.Contains(s, "committed again") || f.log[1].Status != layer.StatusCommitted {
		t.Errorf("redo:\n%s", s)
	}
	if s := m.keys("down", "u"); !strings.Contains(s, "others have changed") {
		t.Errorf("undo with a conflict:\n%s", s)
	}
	if s := m.keys("g", "u"); !strings.Contains(s, "choose a transaction") {
		t.Errorf("undo of everything:\n%s", s)
	}
	if !m.press("q") {
		t.Error("q does not end the log")
	}
}

func TestChooseAndPromote(t *testing.T) {
	f, m := start(t)
	s := m.keys("p")
	if !strings.Contains(s, "[x] add    /job/a") || !strings.Contains(s, "[ ] add    /job/.git/hooks/x  attention: git runs it") || strings.Contains(s, "/job/d") || strings.Contains(s, "\x1b") {
		t.Errorf("the choice:\n%q", s)
	}
	if s := m.keys("enter"); !strings.Contains(s, "+one") || strings.Contains(s, "+two") {
		t.Errorf("the diff of one path:\n%s", s)
	}
	if s := m.keys("q", "G", "space"); !strings.Contains(s, "--merge") {
		t.Errorf("choosing a conflict:\n%s", s)
	}
	if s := m.keys("P"); !strings.Contains(s, "write 1 paths to the host?") {
		t.Errorf("the question:\n%s", s)
	}
	if m.keys("x"); f.promoted != nil {
		t.Errorf("promoted without a yes: %q", f.promoted)
	}
	if s := m.keys("n", "P"); !strings.Contains(s, "nothing is chosen") {
		t.Errorf("nothing:\n%s", s)
	}
	s = m.keys("g", "space", "down", "space", "P", "y")
	if want := []string{"/job/a", "/job/.git/hooks/x"}; !slices.Equal(f.promoted, want) || !strings.Contains(s, "written") {
		t.Errorf("promoted %q:\n%s", f.promoted, s)
	}
}

func TestCut(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "äöüäöü": "äöüäö", "\x1b[31mred and long\x1b[0m": "\x1b[31mred a\x1b[0m", "\tx": "    x", "": "",
	} {
		if got := cut(in, 5); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
