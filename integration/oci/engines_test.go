package oci

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestTwoEnginesOneID: two engines that know nothing of each other have containers of one name, each with a state directory
// of its own. Where their cgroups differ both live, and what one does to its own does not touch the other's; where they
// would share one, the second is refused and the first lives on (runc goes on with a warning, and then can't remove it).
func TestTwoEnginesOneID(t *testing.T) {
	_, ours := harness.Peers(t)
	before := snapshot(t)
	first, second := box.Bare(t, ours), box.Bare(t, ours)
	stay := func(s *specs.Spec) { s.Process.Args = []string{"sleep", "1000"} }
	a := first.Up(t, stay)
	path := func(p string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			stay(s)
			s.Linux.CgroupsPath = p
		}
	}
	var group string
	other := box.Bundle(t, func(s *specs.Spec) {
		group = s.Linux.CgroupsPath
		path(group + "-other")(s)
	})
	second.Must(t, "run", "--detach", "--bundle", other.Dir, a.ID)
	for name, id := range map[*harness.Bare]string{first: a.ID, second: a.ID} {
		name.Must(t, "exec", id, "true")
	}
	if one, two := first.State(t, a.ID).Pid, second.State(t, a.ID).Pid; one == two {
		t.Errorf("both have the process %d", one)
	}
	second.Must(t, "pause", a.ID)
	first.Must(t, "exec", a.ID, "true")
	second.Must(t, "delete", "--force", a.ID)
	first.Must(t, "exec", a.ID, "true")

	same := box.Bundle(t, path(cgroupOf(t, first.State(t, a.ID).Pid)))
	r := second.Do(t, "run", "--detach", "--bundle", same.Dir, a.ID)
	if r.Exit == 0 || !strings.Contains(r.Stderr, "not empty") {
		t.Errorf("a cgroup of another's container is taken:\n%v", r)
	}
	first.Must(t, "exec", a.ID, "true")
	first.Must(t, "delete", "--force", a.ID)
	if left := box.Leftovers(before); len(left) > 0 {
		t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
	}
}

// cgroupOf is the path of a process's cgroup of pids.
func cgroupOf(t *testing.T, pid int) string {
	t.Helper()
	out, err := exec.Command("cat", "/proc/"+strconv.Itoa(pid)+"/cgroup").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (strings.Contains(f[1], "pids") || f[1] == "") {
			return f[2]
		}
	}
	t.Fatalf("no cgroup in %q", out)
	return ""
}

// TestEngineDiesAfterCreate: whoever has created a container is killed, with all of its process group. The container waits
// on, and whoever comes next starts it, or deletes it and leaves nothing.
func TestEngineDiesAfterCreate(t *testing.T) {
	_, ours := harness.Peers(t)
	before := snapshot(t)
	d := box.Bare(t, ours)
	for _, next := range []string{"start", "delete"} {
		t.Run(next, func(t *testing.T) {
			b := box.Bundle(t, func(s *specs.Spec) { s.Process.Args = []string{"sleep", "1000"} })
			args := d.Args("create", "--bundle", b.Dir, b.ID)
			// The state says so a moment before create itself is done, and a create that is killed takes its container along.
			done := filepath.Join(b.Dir, "done")
			quoted := "'" + strings.Join(args, "' '") + "' </dev/null >/dev/null 2>&1; touch " + done + "; sleep 1000"
			engine := exec.Command("sh", "-c", quoted)
			engine.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := engine.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				unix.Kill(-engine.Process.Pid, unix.SIGKILL) //nolint:errcheck // below, unless the test has failed
				engine.Wait()                                //nolint:errcheck // likewise
			})
			for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				if _, err := os.Lstat(done); err == nil {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("no container was created")
				}
			}
			if err := unix.Kill(-engine.Process.Pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			engine.Wait() //nolint:errcheck // killed
			if got := d.State(t, b.ID).Status; got != "created" {
				t.Fatalf("after the engine's death the container is %s", got)
			}
			if next == "start" {
				d.Must(t, "start", b.ID)
				d.Must(t, "exec", b.ID, "true")
			}
			d.Must(t, "delete", "--force", b.ID)
		})
	}
	if left := box.Leftovers(before); len(left) > 0 {
		t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
	}
}
