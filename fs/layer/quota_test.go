package layer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

func TestPlanDisk(t *testing.T) {
	for _, c := range []struct {
		q            Quota
		free         int64
		least, most  int64
		inodes       int64
		wantsAnError bool
	}{
		{q: Quota{Bytes: 16 * mib}, least: 16 * mib, most: 19 * mib, inodes: 16*mib/perInode + 10},
		{q: Quota{Bytes: 2 << 30, Inodes: 1000}, least: 2 << 30, most: 2<<30 + 20*mib, inodes: 1018},
		{q: Quota{Inodes: 1000}, free: 1 << 30, least: 1 << 30, most: 1<<30 + 20*mib, inodes: 1018},
		{q: Quota{Bytes: mib - 1}, wantsAnError: true},
		{q: Quota{Inodes: 1}, wantsAnError: true},
		{q: Quota{Bytes: 1 << 62}, wantsAnError: true},
		{q: Quota{Bytes: -1}, wantsAnError: true},
	} {
		size, inodes, err := planDisk(c.q, c.free)
		if (err != nil) != c.wantsAnError || err == nil && (size < c.least || size > c.most || inodes != c.inodes || size%blockSize != 0) {
			t.Errorf("%+v: %d bytes, %d inodes, %v", c.q, size, inodes, err)
		}
	}
}

// needLoop skips where the kernel gives no loop devices.
func needLoop(t *testing.T) {
	t.Helper()
	if unix.Access("/dev/loop-control", unix.R_OK) != nil {
		t.Skip("probe /dev/loop-control: images need loop devices")
	}
}

// fill writes a file until the file system is full, and wants that to happen between two sizes.
func fill(t *testing.T, name string, least, most int64) {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	defer f.Close()
	chunk := make([]byte, 64<<10)
	for n := int64(0); ; n += int64(len(chunk)) {
		if _, err := f.Write(chunk); err != nil {
			if !errors.Is(err, unix.ENOSPC) || n < least {
				t.Fatalf("after %d bytes: %v", n, err)
			}
			return
		}
		if n > most {
			t.Fatalf("%d bytes were written beyond the quota", n)
		}
	}
}

func TestQuota(t *testing.T) {
	needLoop(t)
	b := newQuotaBench(t, start, Quota{Bytes: 16 * mib, Inodes: 200})
	before := content(t, b.view())
	n, dir, done := b.begin()
	fill(t, dir+"/big", 15*mib, 17*mib)
	must(t, os.Remove(dir+"/big"))
	var failed error
	made := 0
	for ; made < 300 && failed == nil; made++ {
		failed = os.WriteFile(fmt.Sprintf("%s/f%d", dir, made), nil, 0o644)
	}
	if !errors.Is(failed, unix.ENOSPC) || made < 150 {
		t.Errorf("after %d files: %v", made, failed)
	}
	for i := range made {
		os.Remove(fmt.Sprintf("%s/f%d", dir, i))
	}
	write(t, dir, map[string]string{"a": "2", "large": strings.Repeat("x", mib)})
	done()
	if tx := b.finish(n); tx.Status != StatusCommitted || tx.Changes != 2 {
		t.Fatalf("after a full disk: %+v", tx)
	}
	must(t, b.l.Undo(n))
	same(t, "after undo", content(t, b.view()), before)
	// The base is bounded as well, and what it lacks a commit lacks.
	fill(t, b.view()+"/base", 12*mib, 17*mib)
	if err := b.l.Redo(n); err == nil {
		t.Error("a redo without room succeeded")
	}
	if got := content(t, b.view())["a"]; got != "1" {
		t.Errorf("after a redo without room: %q", got)
	}
	must(t, os.Remove(b.view()+"/base"))
	must(t, b.l.Redo(n))
}

func TestQuotaCommitWithoutRoom(t *testing.T) {
	needLoop(t)
	b := newQuotaBench(t, start, Quota{Bytes: 16 * mib})
	before := content(t, b.view())
	tx := b.run(func(dir string) {
		must(t, os.WriteFile(dir+"/big", make([]byte, 10*mib), 0o644))
		must(t, os.RemoveAll(dir+"/d"))
	})
	if tx.Status != StatusFailed || !strings.Contains(tx.Reason, "no space") {
		t.Fatalf("%+v", tx)
	}
	same(t, "after a commit without room", content(t, b.view()), before)
	if next := b.run(func(dir string) { write(t, dir, map[string]string{"next": "n"}) }); next.Status != StatusCommitted {
		t.Errorf("the next: %+v", next)
	}
	// It takes no room any more.
	if c, err := b.l.CompareRange(tx.N, tx.N); err != nil || len(c.List) != 0 || !tx.Dropped {
		t.Errorf("diff of what was thrown away: %v", err)
	}
	if err := b.l.Redo(tx.N); err == nil {
		t.Error("what was thrown away is committed")
	}
	fill(t, b.view()+"/base", 14*mib, 17*mib)
}

// TestQuotaOutlivesTheContainer opens the layers again and promotes, and wants no device to be left.
func TestQuotaOutlivesTheContainer(t *testing.T) {
	needLoop(t)
	b := newQuotaBench(t, start, Quota{Bytes: 16 * mib})
	b.run(func(dir string) { write(t, dir, map[string]string{"a": "2", "new/f": "n"}) })
	must(t, b.l.End())
	image, err := os.Open(filepath.Join(b.store, "c", "w0", diskName))
	must(t, err)
	defer image.Close()
	b.l.Close()
	b.base.Close()
	l, err := Open(b.store, "c")
	must(t, err)
	must(t, l.Undo(1))
	must(t, l.Redo(1))
	plan, err := l.PlanPromotion(nil)
	must(t, err)
	must(t, l.Promote(plan))
	if got := content(t, b.host); got["a"] != "2" || got["new/f"] != "n" {
		t.Errorf("host: %v", got)
	}
	l.Close()
	if device, err := findLoop(image); err != nil || device != nil {
		t.Errorf("a loop device is left: %v %v", device, err)
	}
	must(t, Remove(b.store, "c", nil))
}

// TestQuotaAttached is the way of kernels before 6.15, which works on all.
func TestQuotaAttached(t *testing.T) {
	needLoop(t)
	b := newQuotaBench(t, start, Quota{Bytes: 16 * mib})
	w := &b.l.Workspaces[0]
	tx, err := b.l.Begin([]string{"x"}, "")
	must(t, err)
	clone, err := unix.OpenTree(int(b.base.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	must(t, err)
	view := os.NewFile(uintptr(clone), "view")
	defer view.Close()
	f, err := b.l.overlayAttached(&stack{w: w, view: view, upper: txUpper(tx.N, w), work: workIn(tx.Dir(), w), scratch: txDir(tx.N) + "/" + w.Name})
	must(t, err)
	write(t, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), map[string]string{"a": "2"})
	f.Close()
	if tx := b.finish(tx.N); tx.Status != StatusCommitted || tx.Changes != 1 {
		t.Errorf("%+v", tx)
	}
	must(t, b.l.makeDir(w, "other"))
	must(t, b.l.makeDir(w, "other.work"))
	host, err := w.host()
	must(t, err)
	defer host.Close()
	g, err := b.l.overlayAttached(&stack{w: w, host: host, upper: "other", work: "other.work"})
	must(t, err)
	defer g.Close()
	same(t, "a view over the host", content(t, "/proc/self/fd/"+strconv.Itoa(int(g.Fd()))), content(t, b.host))
}

// TestFullDiskAtEveryStep lets commit, undo, redo and promote meet a full disk at every system call that can meet one,
// once and from there on. What follows finds the view, or the host, as it was or as it was to be.
func TestFullDiskAtEveryStep(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("probe strace: ", err)
	}
	// Removing and changing what is there needs no room.
	const calls = "renameat,renameat2,mkdirat,linkat,symlinkat,mknodat,write,copy_file_range,sendfile"
	for _, op := range []string{opCommit, opUndo, opRedo, opPromote} {
		for _, lasting := range []string{"", "+"} {
			t.Run(op+lasting, func(t *testing.T) {
				step := 3
				if os.Getenv("AGENTSAFE_TEST_LONG") != "" {
					step = 1
				}
				met := 0
				for n := 1; ; n += step {
					b, before, after := crashBench(t, op, WorkspaceOptions{})
					completed := injectAt(t, op, b.store, calls, "error=ENOSPC:when="+strconv.Itoa(n)+lasting)
					if op == opPromote {
						checkHost(t, b, n, before, after, completed)
					} else {
						checkView(t, b, n, before, after, completed, op)
					}
					if completed {
						break
					}
					met++
				}
				if met < 2 {
					t.Errorf("%s met a full disk %d times only", op, met)
				}
			})
		}
	}
}
