package layer

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestGivenOnce(t *testing.T) {
	for id, want := range map[string]bool{
		"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef": true,
		"0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef": false,
		"0123456789abcdef": false, "demo": false, "": false,
	} {
		if got := GivenOnce(id); got != want {
			t.Errorf("%q: %v", id, got)
		}
	}
}

// TestContinue makes a container again on its layers, on a disk, in an image and in memory: what was committed is there, a
// transaction that was going on is decided, numbers go on, and what is undone may be of the earlier run.
func TestContinue(t *testing.T) {
	for name, o := range map[string]WorkspaceOptions{"disk": {}, "image": {Quota: Quota{Bytes: 16 * mib}}, "memory": inMemory()} {
		t.Run(name, func(t *testing.T) {
			if name == "image" {
				needLoop(t)
			}
			b := newBenchWith(t, start, o)
			o.Path, o.Destination = b.host, "/job"
			b.run(func(dir string) {
				write(t, dir, map[string]string{"a": "2"})
				must(t, os.RemoveAll(dir+"/d"))
			})
			_, dir, done := b.begin()
			write(t, dir, map[string]string{"open": "o"})
			done()
			b.l.Close()
			b.base.Close()
			l, err := Continue(b.store, "c", []WorkspaceOptions{o})
			if err != nil || l == nil {
				t.Fatal(err)
			}
			source, err := os.Open(b.host)
			must(t, err)
			defer source.Close()
			if b.base, err = l.Again(source, &o); err != nil {
				t.Fatal(err)
			}
			b.l = l
			b.hold()
			must(t, l.Started(0, 0))
			want := map[string]string{"a": "2", "open": "o", "keep": "dir", "keep/k": "k"}
			same(t, "the view", content(t, b.view()), want)
			if tx := b.run(func(dir string) { write(t, dir, map[string]string{"b": "b"}) }); tx.N != 3 || tx.Status != StatusCommitted || !l.Ended.IsZero() {
				t.Errorf("%+v, ended %v", tx, l.Ended)
			}
			must(t, l.Undo(1))
			if got := content(t, b.view()); got["a"] != "1" || got["d/x"] != "x" || got["b"] != "b" {
				t.Errorf("after undo: %v", got)
			}
			must(t, l.End())
			l.Close()
			b.base.Close()

			other := o
			other.Destination = "/other"
			bounded := o
			bounded.Quota.Inodes = 1000
			for _, want := range [][]WorkspaceOptions{nil, {other}, {bounded}, {o, other}} {
				if l, err := Continue(b.store, "c", want); err == nil || l != nil {
					t.Errorf("continued as %+v", want)
				}
			}
			l, err = Open(b.store, "c")
			must(t, err)
			data, err := os.ReadFile("/proc/self/stat")
			must(t, err)
			ticks, err := strconv.ParseUint(strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))[19], 10, 64)
			must(t, err)
			must(t, l.Started(os.Getpid(), ticks))
			l.Close()
			if _, err := Continue(b.store, "c", []WorkspaceOptions{o}); !errors.Is(err, unix.EBUSY) {
				t.Errorf("continued while it runs: %v", err)
			}
			if l, err := Continue(b.store, "nobody", nil); l != nil || err != nil {
				t.Errorf("without layers: %v %v", l, err)
			}
		})
	}
}
