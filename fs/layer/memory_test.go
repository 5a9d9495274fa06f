package layer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// attached reports whether something is mounted below a directory.
func attached(t *testing.T, dir string) bool {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	return strings.Contains(string(mounts), " "+dir+"/")
}

// TestMemory works on layers in memory as on others: transactions, a full layer, undo, a checkpoint, and promotion after
// the container is gone.
func TestMemory(t *testing.T) {
	b := newBenchWith(t, start, inMemory())
	before := content(t, b.view())
	n, dir, done := b.begin()
	fill(t, dir+"/big", 15*mib, 16*mib)
	must(t, os.Remove(dir+"/big"))
	write(t, dir, map[string]string{"a": "2", "new/f": "n"})
	must(t, os.RemoveAll(dir+"/d"))
	done()
	if tx := b.finish(n); tx.Status != StatusCommitted {
		t.Fatalf("%+v", tx)
	}
	after := content(t, b.view())
	must(t, b.l.SaveCheckpoint("good"))
	must(t, b.l.Undo(n))
	same(t, "after undo", content(t, b.view()), before)
	_, err := b.l.Restore("good")
	must(t, err)
	same(t, "after restore", content(t, b.view()), after)
	same(t, "the host", content(t, b.host), before)
	must(t, b.l.End())
	b.l.Close()
	b.base.Close()

	l, err := Open(b.store, "c")
	must(t, err)
	plan, err := l.PlanPromotion(nil)
	must(t, err)
	must(t, l.Promote(plan))
	l.Close()
	same(t, "the host after promotion", content(t, b.host), after)
	must(t, Remove(b.store, "c", nil))
	if attached(t, b.store) {
		t.Error("the file system of the layers is left")
	}
}

// TestMemoryDevices wants all files of a view to have the device of their directory, changed or not: programs take another
// one for another file system.
func TestMemoryDevices(t *testing.T) {
	b := newBenchWith(t, start, inMemory())
	write(t, b.view(), map[string]string{"a": "2", "new": "n"})
	var root unix.Stat_t
	must(t, unix.Stat(b.view()+"/", &root))
	for _, name := range []string{"a", "new", "d", "d/x", "keep/k"} {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(b.view(), name), &st))
		if st.Dev != root.Dev {
			t.Errorf("%s has the device %x, the root %x", name, st.Dev, root.Dev)
		}
	}
	var before, after unix.Stat_t
	must(t, unix.Stat(b.view()+"/keep/k", &before))
	must(t, os.Chmod(b.view()+"/keep/k", 0o600))
	must(t, unix.Stat(b.view()+"/keep/k", &after))
	if before.Ino != after.Ino {
		t.Errorf("a file that is changed gets another number: %d, %d", before.Ino, after.Ino)
	}
}

// TestMemoryGone looks at layers whose memory is gone, as after a start of the machine: they say so, and can be removed.
func TestMemoryGone(t *testing.T) {
	b := newBenchWith(t, start, inMemory())
	b.run(func(dir string) { write(t, dir, map[string]string{"a": "2"}) })
	must(t, b.l.End())
	b.l.Close()
	b.base.Close()
	must(t, unix.Unmount(filepath.Join(b.store, "c", "w0", memoryName), 0))
	l, err := Open(b.store, "c")
	must(t, err)
	if _, err := l.PlanPromotion(nil); !errors.Is(err, ErrMemoryGone) {
		t.Errorf("a promotion of what is gone: %v", err)
	}
	if err := l.Undo(1); !errors.Is(err, ErrMemoryGone) {
		t.Errorf("undo of what is gone: %v", err)
	}
	l.Close()
	must(t, Remove(b.store, "c", nil))
}

// TestMemoryIncomplete makes layers of a name whose maker died before the first state was written, and while they were
// removed.
func TestMemoryIncomplete(t *testing.T) {
	b := newBenchWith(t, start, inMemory())
	b.l.Close()
	b.base.Close()
	must(t, os.Remove(filepath.Join(b.store, "c", stateFile)))
	l, err := Create(b.store, "c")
	must(t, err)
	l.Close()
	if attached(t, b.store) {
		t.Error("the file system of layers that were never complete is left")
	}

	must(t, os.RemoveAll(b.store))
	b = newBenchWith(t, start, inMemory())
	b.l.Close()
	b.base.Close()
	must(t, unix.Rename(filepath.Join(b.store, "c"), filepath.Join(b.store, removedPrefix+"x")))
	_, err = Expire(b.store, DefaultExpiry, nil)
	must(t, err)
	if left, err := os.ReadDir(b.store); err != nil || len(left) > 0 || attached(t, b.store) {
		t.Errorf("left: %v %v", left, err)
	}
}

func TestMemoryRefusals(t *testing.T) {
	for _, q := range []Quota{{}, {Bytes: minQuota - 1}, {Bytes: minQuota, Inodes: 1}, {Bytes: minQuota, Inodes: -1}} {
		l := &Layers{}
		if err := l.makeMemory(&Workspace{Name: "w0", Quota: q}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}
