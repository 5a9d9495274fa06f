package layer

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bench is a workspace without a container: the base mount is held by the test as init would hold it.
type bench struct {
	t     *testing.T
	store string
	host  string
	l     *Layers
	base  *os.File
}

func newBench(t *testing.T, files map[string]string) *bench {
	t.Helper()
	return newQuotaBench(t, files, Quota{})
}

func newQuotaBench(t *testing.T, files map[string]string, q Quota) *bench {
	t.Helper()
	return newBenchWith(t, files, WorkspaceOptions{Quota: q})
}

// inMemory is a workspace whose layers lie in memory.
func inMemory() WorkspaceOptions {
	return WorkspaceOptions{Quota: Quota{Bytes: 16 * mib}, Memory: true}
}

func newBenchWith(t *testing.T, files map[string]string, o WorkspaceOptions) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("probe root: overlays need CAP_SYS_ADMIN")
	}
	dir, err := os.MkdirTemp("/var/tmp", "agentsafe-layer-") //nolint:usetesting // the usual one may be on an overlay or tmpfs
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &bench{t: t, store: filepath.Join(dir, "layers"), host: filepath.Join(dir, "host")}
	if err := os.Mkdir(b.host, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, b.host, files)
	tick()
	if b.l, err = Create(b.store, "c"); err != nil {
		t.Fatal(err)
	}
	if o.Memory {
		t.Cleanup(func() {
			if dir, err := os.Open(filepath.Join(b.store, "c")); err == nil {
				must(t, releaseMemory(dir))
				dir.Close()
			}
		})
	}
	t.Cleanup(func() { b.l.Close() })
	source, err := os.Open(b.host)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	o.Path, o.Destination = b.host, "/job"
	if b.base, err = b.l.AddWorkspace(source, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.base.Close() })
	if err := b.l.save(); err != nil {
		t.Fatal(err)
	}
	b.hold()
	return b
}

// hold lets the layers use the base mount, as they would find it in a running container.
func (b *bench) hold() {
	b.t.Helper()
	dir, err := reopen(b.base)
	if err != nil {
		b.t.Fatal(err)
	}
	b.l.views = map[string]*os.File{"w0": dir}
}

// tick waits until the clock of the file system has moved.
func tick() { time.Sleep(20 * time.Millisecond) }

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func (b *bench) view() string { return "/proc/self/fd/" + strconv.Itoa(int(b.base.Fd())) }

// begin starts a transaction and returns its number and the path of its view.
func (b *bench) begin() (int, string, func()) {
	b.t.Helper()
	tx, err := b.l.Begin([]string{"test"}, "")
	if err != nil {
		b.t.Fatal(err)
	}
	f, err := b.l.Mount(tx.Dir(), &b.l.Workspaces[0], b.base)
	if err != nil {
		b.t.Fatal(err)
	}
	return tx.N, "/proc/self/fd/" + strconv.Itoa(int(f.Fd())), func() { f.Close() }
}

// run is a whole transaction; it returns what became of it.
func (b *bench) run(task func(dir string)) *Transaction {
	b.t.Helper()
	n, dir, done := b.begin()
	task(dir)
	done()
	return b.finish(n)
}

func (b *bench) finish(n int) *Transaction {
	b.t.Helper()
	zero := 0
	if err := b.l.Finish(n, &zero); err != nil {
		b.t.Fatal(err)
	}
	tx, err := b.l.find(n)
	if err != nil {
		b.t.Fatal(err)
	}
	return tx
}

func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.Walk(dir+"/", func(p string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(p, dir), "/")
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			out[rel] = string(data)
			return err
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(p)
			out[rel] = "-> " + target
			return err
		case info.IsDir():
			if rel != "" {
				out[rel] = "dir"
			}
		default:
			out[rel] = info.Mode().Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %q is %q, want %q", what, k, got[k], v)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s: %q is there with %q", what, k, v)
		}
	}
}

var start = map[string]string{"a": "1", "d/x": "x", "d/y": "y", "keep/k": "k"}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCommitUndoRedo(t *testing.T) {
	b := newBench(t, start)
	before := content(t, b.view())
	tx := b.run(func(dir string) {
		write(t, dir, map[string]string{"a": "2", "new/deep/f": "n"})
		must(t, os.RemoveAll(dir+"/d"))
		must(t, os.Symlink("a", dir+"/link"))
		must(t, os.Chmod(dir+"/keep/k", 0o600))
	})
	if tx.Status != StatusCommitted || tx.Changes != 7 {
		t.Fatalf("transaction: %+v", tx)
	}
	after := map[string]string{"a": "2", "new": "dir", "new/deep": "dir", "new/deep/f": "n", "link": "-> a", "keep": "dir", "keep/k": "k"}
	same(t, "after commit", content(t, b.view()), after)
	must(t, b.l.Undo(tx.N))
	same(t, "after undo", content(t, b.view()), before)
	if info, err := os.Stat(b.view() + "/keep/k"); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode after undo: %v %v", info, err)
	}
	must(t, b.l.Redo(tx.N))
	same(t, "after redo", content(t, b.view()), after)
	same(t, "the host", content(t, b.host), map[string]string{"a": "1", "d": "dir", "d/x": "x", "d/y": "y", "keep": "dir", "keep/k": "k"})
	if err := b.l.Redo(tx.N); err == nil {
		t.Error("a second redo succeeded")
	}
}

func TestReplacedKinds(t *testing.T) {
	b := newBench(t, start)
	before := content(t, b.view())
	tx := b.run(func(dir string) {
		must(t, os.RemoveAll(dir+"/d"))
		must(t, os.WriteFile(dir+"/d", []byte("file"), 0o644))
		must(t, os.Remove(dir+"/a"))
		must(t, os.Mkdir(dir+"/a", 0o755))
		must(t, os.RemoveAll(dir+"/keep"))
		write(t, dir, map[string]string{"keep/other": "o"})
	})
	if tx.Status != StatusCommitted {
		t.Fatalf("transaction: %+v", tx)
	}
	same(t, "after commit", content(t, b.view()), map[string]string{"d": "file", "a": "dir", "keep": "dir", "keep/other": "o"})
	must(t, b.l.Undo(tx.N))
	same(t, "after undo", content(t, b.view()), before)
}

// TestRename renames files of the host and of the layer, in a transaction and in the base, and promotes that.
func TestRename(t *testing.T) {
	b := newBench(t, map[string]string{"a": "1", "b": "2", "d/x": "x"})
	for n, names := range [][2]string{{"a", "a2"}, {"a2", "a3"}, {"d/x", "x2"}} {
		tx := b.run(func(dir string) {
			must(t, os.Rename(dir+"/"+names[0], dir+"/"+names[1]))
			write(t, dir, map[string]string{names[1]: "changed"})
		})
		if tx.Status != StatusCommitted {
			t.Fatalf("renaming %d: %+v", n, tx)
		}
	}
	must(t, os.Rename(b.view()+"/b", b.view()+"/b2"))
	plan, err := b.l.PlanPromotion(nil)
	must(t, err)
	must(t, b.l.Promote(plan))
	same(t, "host", content(t, b.host), map[string]string{"a3": "changed", "b2": "2", "x2": "changed", "d": "dir"})
}

func TestNothingChanged(t *testing.T) {
	b := newBench(t, start)
	tx := b.run(func(dir string) {
		if _, err := os.ReadFile(dir + "/a"); err != nil {
			t.Error(err)
		}
		f, err := os.OpenFile(dir+"/a", os.O_RDWR, 0) // copied up, and as it was
		must(t, err)
		f.Close()
	})
	if tx.Status != StatusCommitted || tx.Changes != 0 {
		t.Errorf("transaction: %+v", tx)
	}
	if _, err := os.Stat(filepath.Join(b.l.path, "t/1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty layer is kept: %v", err)
	}
}

func TestConflicts(t *testing.T) {
	for _, c := range []struct {
		name     string
		mine     func(dir string)
		other    func(dir string)
		conflict string
	}{
		{"both write", func(d string) { write(t, d, map[string]string{"a": "mine"}) }, func(d string) { write(t, d, map[string]string{"a": "other"}) }, "a"},
		{"both make", func(d string) { write(t, d, map[string]string{"n": "mine"}) }, func(d string) { write(t, d, map[string]string{"n": "other"}) }, "n"},
		{"written and deleted", func(d string) { write(t, d, map[string]string{"a": "mine"}) }, func(d string) { os.Remove(d + "/a") }, "a"},
		{"deleted and written below", func(d string) { os.RemoveAll(d + "/d") }, func(d string) { write(t, d, map[string]string{"d/z": "other"}) }, "d"},
		{"written below what was deleted", func(d string) { write(t, d, map[string]string{"d/z": "mine"}) }, func(d string) { os.RemoveAll(d + "/d") }, "d"},
		{"apart", func(d string) { write(t, d, map[string]string{"d/1": "mine"}) }, func(d string) { write(t, d, map[string]string{"d/2": "other"}) }, ""},
	} {
		for _, outside := range []bool{false, true} {
			t.Run(c.name+map[bool]string{true: ", by the base", false: ", by a transaction"}[outside], func(t *testing.T) {
				b := newBench(t, start)
				n, dir, done := b.begin()
				c.mine(dir)
				tick()
				if outside {
					c.other(b.view())
				} else if tx := b.run(c.other); tx.Status != StatusCommitted {
					t.Fatalf("the other: %+v", tx)
				}
				done()
				view := content(t, b.view())
				tx := b.finish(n)
				if c.conflict == "" {
					if tx.Status != StatusCommitted {
						t.Fatalf("%+v", tx)
					}
					return
				}
				if tx.Status != StatusConflict || tx.Conflicts[0].Path != c.conflict {
					t.Fatalf("%+v", tx)
				}
				same(t, "after the conflict", content(t, b.view()), view)
			})
		}
	}
}

func TestUndoConflict(t *testing.T) {
	b := newBench(t, start)
	one := b.run(func(d string) { write(t, d, map[string]string{"a": "one", "dir/f": "f"}) }).N
	two := b.run(func(d string) { write(t, d, map[string]string{"a": "two"}) }).N
	var conflict *ConflictError
	if err := b.l.Undo(one); !errors.As(err, &conflict) || conflict.Conflicts[0].Path != "a" {
		t.Fatalf("undo of the first: %v", err)
	}
	must(t, b.l.Undo(two))
	b.run(func(d string) { write(t, d, map[string]string{"dir/later": "l"}) })
	if err := b.l.Undo(one); !errors.As(err, &conflict) || conflict.Conflicts[0].Path != "dir/later" {
		t.Fatalf("undo with a file of another in its directory: %v", err)
	}
	must(t, b.l.Undo(3))
	must(t, b.l.Undo(one))
	same(t, "at the end", content(t, b.view()), map[string]string{"a": "1", "d": "dir", "d/x": "x", "d/y": "y", "keep": "dir", "keep/k": "k"})
}

func TestCommitRules(t *testing.T) {
	for _, c := range []struct {
		rule string
		exit *int
		want Status
	}{
		{CommitAlways, new(1), StatusCommitted},
		{CommitSuccess, new(0), StatusCommitted},
		{CommitSuccess, new(1), StatusDiscarded},
		{CommitSuccess, nil, StatusDiscarded},
		{CommitNever, new(0), StatusDiscarded},
	} {
		b := newBench(t, start)
		tx, err := b.l.Begin([]string{"x"}, c.rule)
		must(t, err)
		f, err := b.l.Mount(tx.Dir(), &b.l.Workspaces[0], b.base)
		must(t, err)
		write(t, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), map[string]string{"a": "2"})
		f.Close()
		must(t, b.l.Finish(tx.N, c.exit))
		if got, _ := b.l.find(tx.N); got.Status != c.want {
			t.Errorf("%s with %v: %s", c.rule, c.exit, got.Status)
		}
	}
}

func TestPromote(t *testing.T) {
	b := newBench(t, start)
	must(t, os.Chown(b.host, 1234, 1234))
	for _, p := range []string{"a", "d", "d/x", "d/y", "keep", "keep/k"} {
		must(t, os.Chown(filepath.Join(b.host, p), 1234, 1234))
	}
	tick()
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(b.host, "d"), &st))
	b.l.Workspaces[0].Since = time.Now().UnixNano()
	b.run(func(d string) {
		write(t, d, map[string]string{"a": "2", "new/f": "n", ".git/hooks/pre-commit": "evil", "d/x": "changed"})
		must(t, os.Chmod(d+"/new/f", 0o4755))
		must(t, os.Remove(d+"/d/y"))
		must(t, os.Symlink("/etc/passwd", d+"/out"))
		must(t, unix.Mkfifo(d+"/pipe", 0o600))
	})
	plan, err := b.l.PlanPromotion(nil)
	must(t, err)
	must(t, b.l.Promote(plan))
	want := map[string]string{"a": "2", "d": "dir", "d/x": "changed", "keep": "dir", "keep/k": "k", "new": "dir", "new/f": "n"}
	same(t, "host", content(t, b.host), want)
	must(t, unix.Stat(filepath.Join(b.host, "new/f"), &st))
	if st.Uid != 1234 || st.Mode&0o7777 != 0o755 {
		t.Errorf("promoted file: owner %d, mode %o", st.Uid, st.Mode)
	}
	// What was promoted is no change any more, and what was left out can be named.
	plan, err = b.l.PlanPromotion([]string{".git/hooks/pre-commit"})
	must(t, err)
	must(t, b.l.Promote(plan))
	if data, err := os.ReadFile(filepath.Join(b.host, ".git/hooks/pre-commit")); err != nil || string(data) != "evil" {
		t.Errorf("named surface: %q %v", data, err)
	}
	b.run(func(d string) { write(t, d, map[string]string{"a": "3"}) })
	plan, err = b.l.PlanPromotion([]string{"/job/a"})
	must(t, err)
	must(t, b.l.Promote(plan))
	if data, _ := os.ReadFile(filepath.Join(b.host, "a")); string(data) != "3" {
		t.Errorf("second promotion of a path: %q", data)
	}
}

// TestWorkspaceIsASurface promotes from a workspace that is a repository's own directory: nothing of it without its name.
func TestWorkspaceIsASurface(t *testing.T) {
	for folder, flagged := range map[string]bool{"/home/u/project/.git": true, "/src/.github/workflows": true, "/home/u/.git/x/y": false, "/home/u/project": false} {
		w := Workspace{Source: folder}
		if got := w.surface("hooks/pre-commit") != ""; got != flagged {
			t.Errorf("%s: flagged %v", folder, got)
		}
		if _, covered := match([]string{""}, "config", map[string]bool{}, &w); !covered {
			t.Errorf("%s: its root does not cover what is in it", folder)
		}
		if named, _ := match([]string{""}, "config", map[string]bool{}, &w); named != flagged {
			t.Errorf("%s: naming it names its files: %v", folder, named)
		}
	}
}

func TestPromoteConflict(t *testing.T) {
	b := newBench(t, start)
	b.run(func(d string) { write(t, d, map[string]string{"a": "task", "b": "task", "d/x": "task"}) })
	tick()
	write(t, b.host, map[string]string{"a": "host", "b": "host"})
	must(t, os.Remove(filepath.Join(b.host, "d/x")))
	before := content(t, b.host)
	plan, err := b.l.PlanPromotion(nil)
	must(t, err)
	var conflict *ConflictError
	if err := b.l.Promote(plan); !errors.As(err, &conflict) || len(conflict.Conflicts) != 3 {
		t.Fatalf("promote: %v", err)
	}
	same(t, "host", content(t, b.host), before)
}

func TestPromoteRollsBack(t *testing.T) {
	b := newBench(t, start)
	must(t, os.Chown(b.host, 1234, 1234))
	for _, p := range []string{"a", "d"} { // d/x and keep stay root's
		must(t, os.Chown(filepath.Join(b.host, p), 1234, 1234))
	}
	b.l.Workspaces[0].Since = time.Now().Add(time.Second).UnixNano()
	b.run(func(d string) { write(t, d, map[string]string{"a": "2", "d/new": "n", "keep/k": "changed"}) })
	before := content(t, b.host)
	plan, err := b.l.PlanPromotion(nil)
	must(t, err)
	if err := b.l.Promote(plan); !errors.Is(err, unix.EACCES) {
		t.Fatalf("the owner wrote into another's directory: %v", err)
	}
	same(t, "host", content(t, b.host), before)
}

// TestMountAttached is the way of kernels before 6.15, which works on all.
func TestMountAttached(t *testing.T) {
	b := newBench(t, start)
	tx, err := b.l.Begin([]string{"x"}, "")
	must(t, err)
	clone, err := unix.OpenTree(int(b.base.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	must(t, err)
	base := os.NewFile(uintptr(clone), "base")
	defer base.Close()
	w := &b.l.Workspaces[0]
	f, err := b.l.overlayAttached(&stack{w: w, view: base, upper: txUpper(tx.N, w), work: workIn(tx.Dir(), w), scratch: txDir(tx.N) + "/" + w.Name})
	must(t, err)
	write(t, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), map[string]string{"a": "2"})
	f.Close()
	if after, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(after), b.l.path) {
		t.Errorf("the host's mounts have changed: %v", err)
	}
	if tx := b.finish(tx.N); tx.Status != StatusCommitted || tx.Changes != 1 {
		t.Errorf("%+v", tx)
	}
}

func TestLogIsBounded(t *testing.T) {
	l := &Layers{State: &State{}}
	for n := 1; n <= 3*maxLog; n++ {
		l.forget()
		l.Transactions = append(l.Transactions, Transaction{N: n, Status: StatusCommitted, Changes: map[bool]int{true: 1}[n%100 == 0]})
	}
	kept := 0
	for _, tx := range l.Transactions {
		if tx.Changes > 0 {
			kept++
		}
	}
	if len(l.Transactions) != maxLog || kept != 3*maxLog/100 || l.Transactions[maxLog-1].N != 3*maxLog {
		t.Errorf("%d transactions are kept, %d of those with changes", len(l.Transactions), kept)
	}
}

// TestAttack_ChangedWhileStaged: the task changes a file between the look at the plan's digest and the copy of the file.
func TestAttack_ChangedWhileStaged(t *testing.T) {
	b := newBench(t, start)
	b.run(func(d string) { write(t, d, map[string]string{"a": "2", "new/f": "n"}) })
	plan, err := b.l.PlanPromotion(nil)
	must(t, err)
	for _, evil := range []bool{false, true} {
		if evil {
			write(t, b.view(), map[string]string{"a": "evil"})
		}
		targets, err := b.l.openTargets(newPromotion(plan.Taken()))
		must(t, err)
		defer targets.close()
		must(t, targets.stage(b.l))
		if err := targets.verify(plan.Digest); errors.Is(err, ErrConflict) != evil {
			t.Errorf("evil %v: %v", evil, err)
		}
		must(t, targets.clean())
	}
	same(t, "host", content(t, b.host), map[string]string{"a": "1", "d": "dir", "d/x": "x", "d/y": "y", "keep": "dir", "keep/k": "k"})
}
