package races

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// storm is many callers on one state directory.
type storm struct {
	*harness.Bare
	t      *testing.T
	before harness.Snapshot
	lock   sync.Mutex
	calls  map[string]int // by command and outcome
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	_, ours := harness.Peers(t)
	before, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return &storm{Bare: box.Bare(t, ours), t: t, before: before, calls: map[string]int{}}
}

// fitting are the reasons that an operation may give when another one was quicker.
var fitting = regexp.MustCompile(`does not exist|already exists|exists|not running|stopped container|is not stopped|cannot start|` +
	`never completed|was never|paused|thawed meanwhile|no such process|container .* has ended|init ended`)

// call runs a command and judges its outcome. It returns whether it succeeded. It is called by many goroutines.
func (s *storm) call(args ...string) bool {
	text, err := s.command(args...)
	outcome := "done"
	if err != nil {
		outcome = "refused"
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.calls[args[0]+" "+outcome]++
	switch {
	case strings.Contains(text, "DATA RACE"), strings.Contains(text, "goroutine "), strings.Contains(text, "panic"):
		s.t.Errorf("%v:\n%s", args, text)
	case err != nil && !fitting.MatchString(text) && !endedByKill(args, err):
		s.t.Errorf("%v: %v: the reason does not fit: %q", args, err, text)
	}
	return err == nil
}

// command runs the runtime and returns what it has written. Not to a pipe: a container that has inherited it would hold
// it open.
func (s *storm) command(args ...string) (string, error) {
	file, err := os.CreateTemp(box.Dir, "output-")
	if err != nil {
		return "", err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	line := s.Args(args...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = box.Dir, file, file
	err = cmd.Run()
	text, rerr := os.ReadFile(file.Name())
	if err == nil {
		err = rerr
	}
	return string(text), err
}

// endedByKill says that an exec's process ended with its container.
func endedByKill(args []string, err error) bool {
	exit, ok := err.(*exec.ExitError) //nolint:errorlint // os/exec's own
	return ok && args[0] == "exec" && exit.ExitCode() == 137
}

// over ends every container by force, and looks at what is left.
func (s *storm) over(ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		s.Must(s.t, "delete", "--force", id)
	}
	if left := box.Leftovers(s.before); len(left) > 0 {
		s.t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
	}
	entries, err := os.ReadDir(s.Root)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		s.t.Errorf("left in the state directory: %s", e.Name())
	}
	s.t.Logf("calls: %v", s.calls)
}

// during is how long a storm blows.
func during() time.Duration {
	if os.Getenv("AGENTSAFE_TEST_LONG") != "" {
		return time.Minute
	}
	return 4 * time.Second
}

// sleeper is a bundle of a container that stays.
func sleeper(t *testing.T) harness.Bundle {
	t.Helper()
	return box.Bundle(t, func(s *specs.Spec) { s.Process.Args = []string{"sleep", "1000"} })
}

// TestOneID: every operation on one id at once.
func TestOneID(t *testing.T) {
	s := newStorm(t)
	b := sleeper(t)
	until := time.Now().Add(during())
	var wg sync.WaitGroup
	for _, args := range [][]string{
		{"create", "--bundle", b.Dir, b.ID},
		{"create", "--bundle", b.Dir, b.ID},
		{"start", b.ID},
		{"start", b.ID},
		{"exec", b.ID, "true"},
		{"exec", "--detach", b.ID, "sleep", "1000"},
		{"kill", b.ID, "KILL"},
		{"delete", b.ID},
		{"delete", "--force", b.ID},
		{"state", b.ID},
		{"pause", b.ID},
		{"resume", b.ID},
	} {
		wg.Go(func() {
			for time.Now().Before(until) {
				s.call(args...)
			}
		})
	}
	// An exec that met a paused container waits for it to be resumed, or to go.
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	for waiting := true; waiting; {
		s.call("delete", "--force", b.ID)
		select {
		case <-ended:
			waiting = false
		default:
		}
	}
	s.over(b.ID)
	for _, want := range []string{"create done", "delete done"} {
		if s.calls[want] == 0 {
			t.Errorf("nothing of %q happened, so nothing was tried: %v", want, s.calls)
		}
	}
	// The id is as good as new.
	s.Must(t, "create", "--bundle", b.Dir, b.ID)
	s.Must(t, "start", b.ID)
	s.over(b.ID)
}

// TestManyIDs: whole lives side by side, each of which must succeed.
func TestManyIDs(t *testing.T) {
	s := newStorm(t)
	b := sleeper(t)
	lives := 8
	if os.Getenv("AGENTSAFE_TEST_LONG") != "" {
		lives = 64
	}
	var wg sync.WaitGroup
	ids := make([]string, lives)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%d", b.ID, i)
		dir := withCgroup(t, b, ids[i])
		wg.Go(func() {
			for _, args := range [][]string{
				{"create", "--bundle", dir, ids[i]},
				{"start", ids[i]},
				{"exec", ids[i], "true"},
				{"exec", ids[i], "sh", "-c", "echo x >/dev/null"},
				{"kill", ids[i], "KILL"},
			} {
				if !s.call(args...) {
					t.Errorf("%v failed", args)
					return
				}
			}
			// A signal is sent, not waited for.
			for deadline := time.Now().Add(20 * time.Second); !s.call("delete", ids[i]); {
				if time.Now().After(deadline) {
					t.Errorf("%s can't be deleted", ids[i])
					return
				}
			}
		})
	}
	wg.Wait()
	s.over()
}

// withCgroup returns a bundle like b with a cgroup for id.
func withCgroup(t *testing.T, b harness.Bundle, id string) string {
	t.Helper()
	data, err := os.ReadFile(b.Config())
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		t.Fatal(err)
	}
	spec.Root.Path, spec.Linux.CgroupsPath = b.Rootfs(), box.CgroupParent()+"/"+id
	if data, err = json.Marshal(&spec); err != nil {
		t.Fatal(err)
	}
	dir := box.TempDir(t)
	if err := os.WriteFile(dir+"/config.json", data, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestDeleteDuringExec: a container goes away under execs of all kinds; none of them outlives it.
func TestDeleteDuringExec(t *testing.T) {
	s := newStorm(t)
	b := sleeper(t)
	for until := time.Now().Add(during()); time.Now().Before(until); {
		s.Must(t, "create", "--bundle", b.Dir, b.ID)
		s.Must(t, "start", b.ID)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { s.call("exec", b.ID, "sleep", "1000") })
			wg.Go(func() { s.call("exec", "--detach", b.ID, "sleep", "1000") })
		}
		s.Must(t, "delete", "--force", b.ID)
		wg.Wait()
		if left := box.Leftovers(s.before); len(left) > 0 {
			t.Fatalf("left behind:\n  %s", strings.Join(left, "\n  "))
		}
	}
	s.over(b.ID)
}

// TestKillDuringCreate: the signal comes as soon as there is a process. Either the container was ready, and is gone
// then, or create fails and leaves nothing.
func TestKillDuringCreate(t *testing.T) {
	s := newStorm(t)
	b := sleeper(t)
	killed, failed := 0, 0
	for until := time.Now().Add(during()); time.Now().Before(until); {
		done := make(chan bool, 1)
		go func() { done <- s.created(b) }()
		for open := true; open; {
			select {
			case ok := <-done:
				if !ok {
					failed++
				}
				open = false
			default:
				if s.call("kill", b.ID, "KILL") {
					killed++
				}
			}
		}
		s.call("state", b.ID)
		s.Must(t, "delete", "--force", b.ID)
		if left := box.Leftovers(s.before); len(left) > 0 {
			t.Fatalf("left behind:\n  %s", strings.Join(left, "\n  "))
		}
	}
	if killed == 0 {
		t.Error("no signal met a process")
	}
	t.Logf("%d signals met a process, %d creations failed", killed, failed)
	s.over(b.ID)
}

// created creates the container; a first process that was killed meanwhile is a fitting reason to fail.
func (s *storm) created(b harness.Bundle) bool {
	out, err := s.command("create", "--bundle", b.Dir, b.ID)
	if err != nil && (strings.Contains(out, "goroutine ") || !strings.Contains(out, "agentsafe: ")) {
		s.t.Errorf("create: %v\n%s", err, out)
	}
	return err == nil
}

// TestFreezeDuringExec: an exec in a container that is paused at any moment neither hangs nor runs on.
func TestFreezeDuringExec(t *testing.T) {
	s := newStorm(t)
	b := sleeper(t)
	s.Must(t, "create", "--bundle", b.Dir, b.ID)
	s.Must(t, "start", b.ID)
	until := time.Now().Add(during())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for time.Now().Before(until) {
				s.call("exec", b.ID, "true")
			}
		})
	}
	for time.Now().Before(until) {
		s.call("pause", b.ID)
		s.call("resume", b.ID)
	}
	wg.Wait()
	if st := s.State(t, b.ID); st.Status != "running" || unix.Kill(st.Pid, 0) != nil {
		t.Errorf("state after the storm: %+v", st)
	}
	s.over(b.ID)
}
