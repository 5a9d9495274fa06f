package layer

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCache opens layers that others change in between: what is kept is what was read, and never what was.
func TestCache(t *testing.T) {
	b := newBench(t, start)
	b.l.Close()
	var cache Cache
	defer cache.Close()
	open := func(c *Cache) *Layers {
		l, err := OpenCached(b.store, "c", c)
		must(t, err)
		return l
	}
	for round := range 3 {
		l := open(&cache)
		if l.Keep != (round%2 == 1) || len(l.Transactions) != 2*round {
			t.Fatalf("round %d: keep %v, %d transactions", round, l.Keep, len(l.Transactions))
		}
		tx, err := l.Begin([]string{"mine"}, "")
		must(t, err)
		if cache.read(l.dir) == nil {
			t.Error("what was written just now is not kept")
		}
		tx.Command = []string{"changed and never written"}
		l.Keep = true
		l.Close()
		if l = open(&cache); l.Keep != (round%2 == 1) || l.Transactions[2*round].Command[0] != "mine" {
			t.Errorf("what was not written is kept: %+v", l.State)
		}
		l.Close()
		other := open(nil)
		_, err = other.Begin([]string{"other's"}, "")
		must(t, err)
		must(t, other.SetKeep(round%2 == 0))
		other.Close()
	}
}

// TestReserved begins transactions on layers that were made before, of a folder whose owner changes.
func TestReserved(t *testing.T) {
	b := newBench(t, start)
	w := &b.l.Workspaces[0]
	for range 2 { // the second takes the place of what is there
		must(t, b.l.Reserve(Ready))
	}
	view, err := b.l.Mount(Ready, w, b.base)
	must(t, err)
	defer view.Close()
	write(t, b.view(), map[string]string{"d/later": "made after the mount"})
	tx, err := b.l.BeginReserved(Ready, &Transaction{Command: []string{"x"}})
	must(t, err)
	same(t, "the view", content(t, procPath(view)), map[string]string{
		"a": "1", "d": "dir", "d/x": "x", "d/y": "y", "d/later": "made after the mount", "keep": "dir", "keep/k": "k",
	})
	write(t, procPath(view), map[string]string{"a": "2"})
	if tx = b.finish(tx.N); tx.Status != StatusCommitted || tx.Changes != 1 {
		t.Errorf("%+v", tx)
	}
	must(t, b.l.Reserve(Ready))
	must(t, os.Chmod(b.view(), 0o700))
	if _, err := b.l.BeginReserved(Ready, &Transaction{}); !errors.Is(err, unix.ESTALE) {
		t.Errorf("a layer with the folder's old mode: %v", err)
	}
	if n := len(b.l.Transactions); n != 1 {
		t.Errorf("%d transactions", n)
	}
}

func procPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }
