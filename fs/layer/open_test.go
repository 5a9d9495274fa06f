package layer

import (
	"errors"
	"testing"
)

// Transactions that run are known to whoever opens the layers, though nobody has written layer.json since they began; one
// whose command never started leaves no gap that hides those after it, and its number is given again only if it is the last.
func TestNotes(t *testing.T) {
	b := newBench(t, start)
	seen := func() (out string) {
		t.Helper()
		b.l.Close()
		var err error
		if b.l, err = OpenRecent(b.store, "c"); err != nil {
			t.Fatal(err)
		}
		b.hold()
		for i := range b.l.Transactions {
			tx := &b.l.Transactions[i]
			out += string(rune('0'+tx.N)) + " " + tx.Command[0] + " " + string(tx.Status) + " "
		}
		return out
	}
	want := func(text string) {
		t.Helper()
		if got := seen(); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	begin := func(command string) int {
		t.Helper()
		tx, err := b.l.Begin([]string{command}, "")
		must(t, err)
		return tx.N
	}
	one, two, three := begin("one"), begin("two"), begin("three")
	want("1 one open 2 two open 3 three open ")
	tx, err := b.l.find(two)
	must(t, err)
	must(t, b.l.Process(tx, 7, 1<<62))
	want("1 one open 2 two open 3 three open ")
	if tx, err = b.l.find(two); err != nil || tx.PID != 7 || tx.PIDStart != 1<<62 {
		t.Errorf("%+v, %v", tx, err)
	}
	must(t, b.l.Abandon(one))
	want("1 one discarded 2 two open 3 three open ")
	must(t, b.l.Abandon(three))
	want("1 one discarded 2 two open ")
	if n := begin("four"); n != 3 {
		t.Errorf("the number of one that never was is not given again: %d", n)
	}
	// What is left to do of one that changed nothing may never be done.
	zero := 0
	later, err := b.l.Conclude(two, &zero)
	if err != nil || later == nil {
		t.Fatalf("nothing is left to do: %v", err)
	}
	want("1 one discarded 2 two open 3 four open ")
	must(t, b.l.Settle())
	want("1 one discarded 2 two committed 3 four committed ")
	if n := begin("five"); n != 4 {
		t.Errorf("number %d", n)
	}
	must(t, b.l.Abandon(4))
	must(t, b.l.Abandon(4)) // no more than once
	want("1 one discarded 2 two committed 3 four committed ")
}

// TestMarks commits a transaction and never does what is left to do: whoever opens the layers next finds it committed, can
// take it back, and begins the next one after it. One that has failed and is tried again does not rely on its mark.
func TestMarks(t *testing.T) {
	b := newBench(t, start)
	before := content(t, b.view())
	reopen := func() {
		t.Helper()
		b.l.Close()
		var err error
		if b.l, err = Open(b.store, "c"); err != nil {
			t.Fatal(err)
		}
		b.hold()
	}
	n, dir, done := b.begin()
	write(t, dir, map[string]string{"a": "2", "new/f": "n"})
	done()
	status := 3
	later, err := b.l.Conclude(n, &status)
	if err != nil || later == nil {
		t.Fatalf("nothing is left to do: %v", err)
	}
	after := content(t, b.view())
	was, err := b.l.find(n)
	must(t, err)
	bytes := was.Bytes
	for range 2 {
		reopen()
		tx, err := b.l.find(n)
		if err != nil || tx.Status != StatusCommitted || tx.Changes != 3 || tx.Bytes != bytes || *tx.Exit != status || tx.Ended.IsZero() || b.l.Pending != nil {
			t.Fatalf("%+v, %+v, %v", tx, b.l.Pending, err)
		}
	}
	if next := b.run(func(dir string) { write(t, dir, map[string]string{"b": "b"}) }); next.N != n+1 || next.Status != StatusCommitted {
		t.Errorf("the next: %+v", next)
	}
	must(t, b.l.Undo(n+1))
	must(t, b.l.Undo(n))
	same(t, "after undo", content(t, b.view()), before)
	must(t, b.l.Redo(n))
	same(t, "after redo", content(t, b.view()), after)

	n, dir, done = b.begin()
	write(t, dir, map[string]string{"again": "1"})
	done()
	tx, err := b.l.find(n)
	must(t, err)
	must(t, b.l.markNow(tx, false))
	must(t, b.l.fail(tx, errors.New("a test")))
	reopen()
	if tx, err = b.l.find(n); err != nil || tx.Status != StatusFailed || b.l.Pending != nil {
		t.Fatalf("%+v, %+v, %v", tx, b.l.Pending, err)
	}
	must(t, b.l.Redo(n))
	reopen()
	if got := content(t, b.view())["again"]; got != "1" {
		t.Errorf("after another try: %q", got)
	}
}
