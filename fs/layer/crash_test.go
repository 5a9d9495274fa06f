package layer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// crashEnv makes the test binary perform one operation on the layers in a directory.
const crashEnv = "AGENTSAFE_LAYER_CRASH"

func TestMain(m *testing.M) {
	if op := os.Getenv(crashEnv); op != "" {
		// On one thread: faults are injected by counting its system calls.
		runtime.LockOSThread()
		if err := crashOperation(op); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func crashOperation(op string) error {
	name, store, _ := strings.Cut(op, " ")
	l, err := Open(store, "c")
	if err != nil {
		return err
	}
	defer l.Close()
	switch name {
	case "commit":
		if err := l.Settle(); err != nil {
			return err
		}
		if tx := l.Transactions[0]; tx.Status != StatusCommitted {
			return errors.New(tx.Reason)
		}
		return nil
	case "undo":
		return l.Undo(1)
	case "redo":
		return l.Redo(1)
	case "promote":
		plan, err := l.PlanPromotion(nil)
		if err != nil {
			return err
		}
		return l.Promote(plan)
	}
	return fmt.Errorf("no operation %q", name)
}

// crashCalls are the system calls after which the disk is another one.
const crashCalls = "renameat,renameat2,mkdirat,unlinkat,linkat,symlinkat,mknodat,lsetxattr,fchmod,fchown,write,utimensat"

// killAt runs an operation and kills it at its n-th call; it reports whether the operation came to its end before.
func killAt(t *testing.T, op, store string, n int) bool {
	t.Helper()
	return injectAt(t, op, store, crashCalls, "signal=KILL:when="+strconv.Itoa(n))
}

// injectAt runs an operation with a fault in its system calls; it reports whether the operation came to its end.
func injectAt(t *testing.T, op, store, calls, fault string) bool {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace="+calls, "-e", "inject="+calls+":"+fault, self)
	cmd.Env = append(os.Environ(), crashEnv+"="+op+" "+store, "GOMAXPROCS=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return true
	}
	var exit *exec.ExitError
	if killed := strings.HasPrefix(fault, "signal"); !errors.As(err, &exit) || killed == (exit.ExitCode() == 1) {
		t.Fatalf("%s with %s: %v\n%s", op, fault, err, out)
	}
	return false
}

// crashBench makes layers on which an operation can be performed, closes them, and returns what is there before and after.
func crashBench(t *testing.T, op string, o WorkspaceOptions) (b *bench, before, after map[string]string) {
	t.Helper()
	b = newBenchWith(t, start, o)
	before = content(t, b.view())
	no, dir, done := b.begin()
	write(t, dir, map[string]string{"a": "2", "new/f": "n"})
	must(t, os.RemoveAll(dir+"/d"))
	must(t, os.Symlink("a", dir+"/link"))
	done()
	if op != opCommit {
		if tx := b.finish(no); tx.Status != StatusCommitted {
			t.Fatalf("%+v", tx)
		}
	}
	after = map[string]string{"a": "2", "link": "-> a", "new": "dir", "new/f": "n", "keep": "dir", "keep/k": "k"}
	if op == opRedo {
		must(t, b.l.Undo(no))
	}
	b.l.Close()
	b.base.Close()
	return b, before, after
}

// TestKilledAtEveryStep kills commit, undo, redo and promote at every system call that changes a disk. Afterwards the
// view is the old or the new one, after the next look at the layers, and the host's folder is never half-written.
func TestKilledAtEveryStep(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("probe strace: ", err)
	}
	for _, c := range []struct {
		name, op string
		o        WorkspaceOptions
		step     int
	}{
		{opCommit, opCommit, WorkspaceOptions{}, 5},
		{opUndo, opUndo, WorkspaceOptions{}, 5},
		{opRedo, opRedo, WorkspaceOptions{}, 5},
		{opPromote, opPromote, WorkspaceOptions{}, 5},
		{"commit in memory", opCommit, inMemory(), 11},
		{"undo in memory", opUndo, inMemory(), 11},
		{"promote in memory", opPromote, inMemory(), 11},
	} {
		t.Run(c.name, func(t *testing.T) {
			step, op := c.step, c.op
			if os.Getenv("AGENTSAFE_TEST_LONG") != "" {
				step = 1
			}
			kills := 0
			for n := 1; ; n += step {
				b, before, after := crashBench(t, op, c.o)
				completed := killAt(t, op, b.store, n)
				if op == opPromote {
					checkHost(t, b, n, before, after, completed)
				} else {
					checkView(t, b, n, before, after, completed, op)
				}
				if completed {
					break
				}
				kills++
			}
			if kills < 2 {
				t.Errorf("%s was killed %d times only", op, kills)
			}
		})
	}
}

func checkView(t *testing.T, b *bench, n int, before, after map[string]string, completed bool, op string) {
	t.Helper()
	l, err := Open(b.store, "c")
	if err != nil {
		t.Fatalf("fault at call %d: %v", n, err)
	}
	defer l.Close()
	if l.Pending != nil || l.Stuck() != nil {
		t.Errorf("fault at call %d: %+v is pending, %v", n, l.Pending, l.Stuck())
	}
	if op == opCommit {
		must(t, l.Settle()) // nothing is lost
		if l.Transactions[0].Status == StatusFailed {
			must(t, l.Redo(1))
		}
		completed = true
	}
	if _, err := l.view(&l.Workspaces[0]); err != nil {
		t.Fatal(err)
	}
	want := before
	if l.Transactions[0].Status == StatusCommitted {
		want = after
	}
	if completed && (op == opUndo) == (l.Transactions[0].Status == StatusCommitted) {
		t.Errorf("after %s: %s", op, l.Transactions[0].Status)
	}
	same(t, fmt.Sprintf("fault at call %d: view", n), content(t, "/proc/self/fd/"+strconv.Itoa(int(l.views["w0"].Fd()))), want)
	same(t, "the host", content(t, b.host), before)
}

func checkHost(t *testing.T, b *bench, n int, before, after map[string]string, completed bool) {
	t.Helper()
	l, err := Open(b.store, "c")
	if err != nil {
		t.Fatalf("fault at call %d: %v", n, err)
	}
	l.Close()
	got := content(t, b.host)
	want := before
	if maps.Equal(got, after) {
		want = after
	}
	same(t, fmt.Sprintf("fault at call %d: host", n), got, want)
	if completed && !maps.Equal(got, after) {
		t.Errorf("the promotion is complete and the host is %v", got)
	}
	left, err := filepath.Glob(filepath.Join(b.host, ".agentsafe*"))
	if err != nil || len(left) > 0 {
		t.Errorf("fault at call %d: left %v", n, left)
	}
	var st unix.Stat_t
	must(t, unix.Stat(b.host, &st))
}
