package attacks

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// crashCalls are the kinds of system calls at which create is ended or refused: those that acquire, write or give back.
var crashCalls = []string{
	"mkdirat", "openat", "openat2", "flock", "renameat", "unlinkat", "write", "clone,clone3", "socket", "socketpair", "bind",
	"listen", "memfd_create", "open_tree", "fcntl", "pidfd_open,waitid", "sendto,sendmsg", "recvfrom,recvmsg", "read", "close", "setns", "fchmodat",
	"fstat,newfstatat", "pwrite64", "readlinkat", "ioctl", "getdents64", "poll,ppoll", "kill,pidfd_send_signal", "fchmod",
}

// operation is what is interrupted: a command, on a container that has got so far.
type operation struct {
	name string
	// before are the commands that lead there, and args the one that is interrupted; ID and BUNDLE stand for themselves.
	before [][]string
	args   []string
	// points is how many a short run tries, in each of the tests.
	points int
	// checkpoint has a stand-in for CRIU (intruder criu), and the profile none.
	checkpoint bool
}

// operations is the table of what is interrupted; with the calls of each, it enumerates the steps.
func operations() []operation {
	create := []string{"create", "--bundle", "BUNDLE", "ID"}
	return []operation{
		{"create", nil, []string{"create", "--bundle", "BUNDLE", "--pid-file", "BUNDLE/pid", "ID"}, 34, false},
		{"start", [][]string{create}, []string{"start", "ID"}, 6, false},
		{"exec", [][]string{create, {"start", "ID"}}, []string{"exec", "ID", "true"}, 8, false},
		{"delete", [][]string{create, {"start", "ID"}}, []string{"delete", "--force", "ID"}, 7, false},
		{"checkpoint", [][]string{create, {"start", "ID"}}, checkpointArgs(), 3, true},
		{"restore", [][]string{create, {"start", "ID"}, checkpointArgs()}, restoreArgs(), 6, true},
	}
}

// crash is an operation under strace's fault injection.
type crash struct {
	*arena
	op     operation
	b      harness.Bundle
	before harness.Snapshot
}

func newCrash(t *testing.T, o operation) *crash {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("probe strace: " + err.Error())
	}
	c := &crash{arena: open(t, ""), op: o}
	if o.checkpoint {
		c.profile, c.Global = "none", []string{"--criu", standInCriu(t, "")}
	}
	c.b = c.bundle(t, func(s *specs.Spec) {
		s.Process.Args = []string{"sleep", "1000"}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/bound/dir", Type: "bind", Source: "/bin", Options: []string{"rbind", "ro"}})
	}, nil)
	// The filters are compiled once, and the common parent of the cgroups is made.
	c.must(t, "create", "--bundle", c.b.Dir, c.b.ID)
	c.must(t, "delete", "--force", c.b.ID)
	var err error
	if c.before, err = box.Snapshot(); err != nil {
		t.Fatal(err)
	}
	return c
}

// line puts the container's names into a command.
func (c *crash) line(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = strings.NewReplacer("ID", c.b.ID, "BUNDLE", c.b.Dir).Replace(a)
	}
	return out
}

// trace runs the operation under strace, which lets go of the first process at its execve.
func (c *crash) trace(t *testing.T, options ...string) harness.Result {
	t.Helper()
	for _, args := range c.op.before {
		c.must(t, c.line(args)...)
	}
	args := append([]string{"strace", "-f", "-qq", "-b", "execve", "-o", filepath.Join(c.b.Dir, "strace.out")}, options...)
	args = append(args, c.args(c.line(c.op.args)...)...)
	return box.Run(t, harness.Cmd{Args: args, Timeout: 20 * time.Second})
}

// counts says how often the operation makes each call.
func (c *crash) counts(t *testing.T) map[string]int {
	t.Helper()
	c.trace(t, "-e", "trace="+strings.Join(crashCalls, ","))
	c.must(t, "delete", "--force", c.b.ID)
	out, err := os.ReadFile(filepath.Join(c.b.Dir, "strace.out"))
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(string(out)) {
		_, call, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, isCall := strings.Cut(strings.TrimSpace(call), "(")
		if isCall {
			for _, kind := range crashCalls {
				if strings.Contains(","+kind+",", ","+name+",") {
					counts[kind]++
				}
			}
		}
	}
	return counts
}

// leftovers lists what is there and was not before, but for what an answer needs a moment to end.
func (c *crash) leftovers(t *testing.T) []string {
	t.Helper()
	left := box.Leftovers(c.before)
	entries, err := os.ReadDir(c.Root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, "state "+e.Name())
	}
	return left
}

// recovers checks that delete --force removes everything, and that the id can be used again.
func (c *crash) recovers(t *testing.T, what string) {
	t.Helper()
	if r := c.do(t, "delete", "--force", c.b.ID); r.Exit != 0 {
		t.Errorf("%s: delete --force:\n%v", what, r)
	}
	if left := c.leftovers(t); len(left) > 0 {
		t.Errorf("%s: left after delete --force:\n  %s", what, strings.Join(left, "\n  "))
	}
	if r := c.do(t, "create", "--bundle", c.b.Dir, c.b.ID); r.Exit != 0 {
		t.Errorf("%s: the id can't be used again:\n%v", what, r)
	}
	c.must(t, "delete", "--force", c.b.ID)
}

// points chooses at which calls to try: all of them in a long run, or else as many as fit.
func points(counts map[string]int, total int) []string {
	var all []string
	for _, kind := range crashCalls {
		for n := range counts[kind] {
			all = append(all, kind+":"+strconv.Itoa(n+1))
		}
	}
	if os.Getenv("AGENTSAFE_TEST_LONG") != "" || len(all) <= total {
		return all
	}
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1)) //nolint:gosec // any choice will do; the test names it
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	// The first of each kind always, and the rest by lot.
	sort.SliceStable(all, func(i, j int) bool { return strings.HasSuffix(all[i], ":1") && !strings.HasSuffix(all[j], ":1") })
	return all[:total]
}

// TestCrash_Kill ends each operation with SIGKILL at each of its system calls: delete --force must remove what is left.
func TestCrash_Kill(t *testing.T) {
	for _, o := range operations() {
		t.Run(o.name, func(t *testing.T) {
			c := newCrash(t, o)
			counts := c.counts(t)
			t.Logf("calls of %s: %v", o.name, counts)
			for _, point := range points(counts, o.points) {
				calls, n, _ := strings.Cut(point, ":")
				c.trace(t, "-e", "trace="+calls, "-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%s", calls, n))
				c.recovers(t, "SIGKILL at call "+n+" of "+calls)
			}
		})
	}
}

// TestCrash_Error makes each system call of each operation fail once. If create fails nothing may be left, without any
// help; the others leave a container that can be removed. What does without the call has done its work.
func TestCrash_Error(t *testing.T) {
	for _, o := range operations() {
		t.Run(o.name, func(t *testing.T) {
			c := newCrash(t, o)
			counts := c.counts(t)
			t.Logf("calls of %s: %v", o.name, counts)
			for i, point := range points(counts, o.points) {
				c.fail(t, point, []string{"EIO", "ENOMEM", "EMFILE"}[i%3])
			}
		})
	}
}

// fail injects one error.
func (c *crash) fail(t *testing.T, point, errno string) {
	t.Helper()
	calls, n, _ := strings.Cut(point, ":")
	what := errno + " at call " + n + " of " + calls
	if calls == "read" || calls == "close" {
		// The standard library's fork takes a failed read of its own pipe for a child that has failed, and waits for
		// it; and a close that fails has closed, which strace does not do. Neither is an error that a kernel gives.
		return
	}
	if calls == "pidfd_open,waitid" && c.op.name == "restore" {
		// The count is each thread's, so every wait for CRIU would fail, which no kernel does: what CRIU makes then comes
		// after the end of who would undo it.
		return
	}
	r := c.trace(t, "-e", "trace="+calls, "-e", fmt.Sprintf("inject=%s:error=%s:when=%s", calls, errno, n))
	// The Go runtime itself gives up when it can't have its own descriptors or threads: that is a crash.
	crashed := strings.Contains(r.Stderr, "goroutine ") || strings.Contains(r.Stderr, "runtime: ") || r.Exit > 1 && r.Exit != 255
	if r.Exit != 0 && !crashed {
		if left := c.leftovers(t); (c.op.name == "create" || c.op.name == "restore") && len(left) > 0 {
			t.Errorf("%s: left by the failed operation:\n  %s\n%v", what, strings.Join(left, "\n  "), r)
		}
		// The error's own write may be the one that fails: the count is each thread's.
		if calls != "write" && !strings.Contains(r.Stderr, "agentsafe: ") {
			t.Errorf("%s: no reason given:\n%v", what, r)
		}
	}
	c.recovers(t, what)
}
