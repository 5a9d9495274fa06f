package layer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// reopen lets go of the layers and opens them again, as the next process does.
func (b *bench) reopen(open func(store, id string) (*Layers, error)) {
	b.t.Helper()
	b.l.Close()
	l, err := open(b.store, "c")
	must(b.t, err)
	b.l = l
	b.hold()
}

func (b *bench) state() string { return filepath.Join(b.store, "c", stateFile) }

// TestHistory runs many transactions, each in layers that were opened for it alone. What an exec reads and writes stays
// small, the log stays whole, and what is old can be taken back.
func TestHistory(t *testing.T) {
	b := newBench(t, map[string]string{"shared": "0"})
	long, dir, done := b.begin()
	write(t, dir, map[string]string{"shared": "long"})
	const n = 150
	for i := range n {
		b.reopen(OpenRecent)
		tx := b.run(func(dir string) {
			if i%2 == 0 {
				write(t, dir, map[string]string{fmt.Sprint("f", i): "1"})
			}
			if i == 0 {
				write(t, dir, map[string]string{"shared": "quick"})
			}
		})
		if tx.Status != StatusCommitted {
			t.Fatalf("%+v", tx)
		}
	}
	// All of them are newer than the one that still runs, which has to be compared with them.
	if b.l.ArchivedTo != 0 {
		t.Errorf("up to %d is archived while an older one runs", b.l.ArchivedTo)
	}
	done()
	b.reopen(OpenRecent)
	if tx := b.finish(long); tx.Status != StatusConflict || tx.Conflicts[0].Reason != "transaction 2 has changed it meanwhile" {
		t.Errorf("the long one: %+v", tx)
	}
	b.reopen(OpenRecent)
	before, err := os.ReadFile(b.state())
	must(t, err)
	b.run(func(string) {})
	b.reopen(OpenRecent)
	if len(b.l.Transactions) != keptRecent+1 || b.l.ArchivedTo != n+1-keptRecent {
		t.Errorf("%d transactions are recent, up to %d is archived", len(b.l.Transactions), b.l.ArchivedTo)
	}
	checkLog := func(what string) {
		t.Helper()
		b.reopen(Open)
		for i := range b.l.Transactions {
			if b.l.Transactions[i].N != i+1 {
				t.Fatalf("%s: transaction %d stands at %d", what, b.l.Transactions[i].N, i)
			}
		}
	}
	checkLog("archived")
	if list, err := List(b.store); err != nil || list[0].Transactions != n+2 {
		t.Errorf("listed: %+v %v", list, err)
	}
	b.reopen(Open)
	must(t, b.l.Undo(4))
	checkLog("undone")
	if b.l.Transactions[3].Status != StatusUndone {
		t.Errorf("after undo: %+v", b.l.Transactions[3])
	}
	b.reopen(OpenRecent)
	if len(b.l.Transactions) != keptRecent+2 {
		t.Errorf("%d transactions are recent after an undo", len(b.l.Transactions))
	}
	b.reopen(Open)
	must(t, b.l.Redo(4))
	b.reopen(OpenRecent)
	if len(b.l.Transactions) != keptRecent+1 {
		t.Errorf("%d transactions are recent after undo and redo", len(b.l.Transactions))
	}

	// A crash between the two files: history.json is there, and layer.json knows nothing of it.
	must(t, os.WriteFile(b.state(), before, 0o600))
	checkLog("after a crash")
	if len(b.l.Transactions) != n+1 {
		t.Errorf("%d transactions after a crash", len(b.l.Transactions))
	}
	b.run(func(string) {})
	checkLog("after a crash and another exec")
}
