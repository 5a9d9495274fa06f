package shim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// Cycles of the soak: in every run of the tests, and with AGENTSAFE_TEST_LONG=1.
const shortSoak, longSoak = 50, 1000

// TestSoak runs containers one after the other under a current containerd, with faults in most of them, and wants the
// machine at its end as it was at the start: processes, descriptors, mounts, cgroups, namespaces, sockets.
func TestSoak(t *testing.T) {
	n := shortSoak
	if os.Getenv("AGENTSAFE_TEST_LONG") != "" {
		n = longSoak
	}
	s := newSoak(t)
	faults := []struct {
		name string
		do   func(t *testing.T, id string)
	}{
		{"none", s.plain},
		{"exec", s.exec},
		{"init killed", s.initKilled},
		{"shim killed", s.shimKilled},
		{"shim killed during exec", s.shimKilledInExec},
		{"slow reader", s.slowReader},
		{"full disk", s.fullDisk},
		{"shim killed while starting", s.shimKilledEarly},
		{"containerd killed", s.daemonKilled},
	}
	s.plain(t, box.ID()) // what is made once and kept is there
	s.settle(t)
	before := s.count(t)
	done := map[string]int{}
	began := time.Now()
	for i := range n {
		f := faults[i%len(faults)]
		f.do(t, box.ID())
		done[f.name]++
		if t.Failed() {
			t.Fatalf("in cycle %d, %s", i, f.name)
		}
	}
	s.settle(t)
	// The daemon is another process after each fault of its own, and its pools breathe. Those of the test's own that are
	// only closed by the collector are not counted.
	const slack = 8
	for deadline := time.Now().Add(30 * time.Second); entries(t, "/proc/self/fd") > before["descriptors of the test"]+slack && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		runtime.GC()
	}
	after := s.count(t)
	t.Logf("%d cycles in %v: %v\nbefore: %v\nafter:  %v", n, time.Since(began).Round(time.Second), done, before, after)
	for _, what := range []string{"processes", "mounts", "cgroups", "namespaces", "sockets", "files in /run", "links"} {
		// Fewer is what the daemon had not finished when it was counted before.
		if after[what] > before[what] {
			t.Errorf("%s: %d before, %d after", what, before[what], after[what])
		}
	}
	for _, what := range []string{"descriptors of containerd", "descriptors of the test"} {
		if after[what] > before[what]+slack {
			t.Errorf("%s: %d before, %d after", what, before[what], after[what])
		}
	}
	if t.Failed() {
		t.Logf("left behind:\n%s", strings.Join(s.left(t), "\n"))
	}
}

// soak is a containerd whose state lies on a small file system that can be filled.
type soak struct {
	*containerd
	disk  string // what can be filled
	first harness.Snapshot
	rand  *rand.Rand
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	current, err := harness.CurrentContainerd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	image, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	c := &containerd{
		name: "soak", program: filepath.Join(current, "containerd"), client: filepath.Join(current, "ctr"),
		path: []string{filepath.Dir(shimPath()), current},
	}
	s := &soak{containerd: c, disk: "/run/" + box.Tag + "-" + c.name, rand: rand.New(rand.NewPCG(1, 2))}
	if err := os.Mkdir(s.disk, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", s.disk, "tmpfs", 0, "size=4m,mode=0711"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(s.disk, 0); err != nil {
			t.Error(err)
		}
		os.Remove(s.disk)
		os.RemoveAll("/run/containerd/fifo") // of clients that were killed
	})
	c.configure(t)
	c.start(t)
	t.Cleanup(func() {
		c.cmd.Process.Signal(unix.SIGTERM) //nolint:errcheck // it may have ended
		c.cmd.Wait()                       //nolint:errcheck // likewise
		for _, path := range []string{c.socket(), c.socket() + ".ttrpc"} {
			os.Remove(path)
		}
	})
	c.must(t, "images", "import", image.Archive)
	return s
}

// remove deletes what a fault has left of a container, as an administrator would, and waits until it is gone.
func (s *soak) remove(t *testing.T, id string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		s.do(t, "tasks", "delete", "--force", id)
		r := s.do(t, "containers", "delete", id)
		if r.Exit == 0 || strings.Contains(r.Stderr, "not found") {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("container %s stays:\n%v", id, r)
			return
		}
	}
}

func (s *soak) up(t *testing.T, id string, command ...string) {
	t.Helper()
	s.must(t, s.run(runtimeName, id, []string{"--detach"}, command...)...)
}

func (s *soak) plain(t *testing.T, id string) {
	if r := s.do(t, s.run(runtimeName, id, []string{"--rm"}, "sh", "-c", "echo out; exit 3")...); r.Exit != 3 || r.Stdout != "out\n" {
		t.Errorf("%v", r)
	}
}

func (s *soak) exec(t *testing.T, id string) {
	s.up(t, id, "sleep", "1000")
	if r := s.do(t, "tasks", "exec", "--exec-id", "e", id, "sh", "-c", "echo in; exit 4"); r.Exit != 4 || r.Stdout != "in\n" {
		t.Errorf("%v", r)
	}
	s.must(t, "tasks", "kill", "--signal", "SIGKILL", id)
	s.remove(t, id)
}

func (s *soak) initKilled(t *testing.T, id string) {
	s.up(t, id, "sleep", "1000")
	if err := unix.Kill(s.pidOf(t, id), unix.SIGKILL); err != nil {
		t.Error(err)
	}
	s.waitStatus(t, id, "STOPPED")
	if r := s.do(t, "tasks", "delete", id); !strings.Contains(r.Stderr, "137") {
		t.Errorf("%v", r)
	}
	s.remove(t, id)
}

func (s *soak) pidOf(t *testing.T, id string) int {
	t.Helper()
	for line := range strings.Lines(s.must(t, "tasks", "list")) {
		var name, status string
		var pid int
		if n, err := fmt.Sscan(line, &name, &pid, &status); n == 3 && err == nil && name == id {
			return pid
		}
	}
	t.Fatalf("no task %s", id)
	return 0
}

func (s *soak) shimKilled(t *testing.T, id string) {
	s.up(t, id, "sleep", "1000")
	if err := unix.Kill(shimOf(t, id), unix.SIGKILL); err != nil {
		t.Error(err)
	}
	s.waitStatus(t, id, "none")
	s.remove(t, id)
}

func (s *soak) shimKilledInExec(t *testing.T, id string) {
	s.up(t, id, "sleep", "1000")
	exec := box.Start(t, harness.Cmd{Args: s.args("tasks", "exec", "--exec-id", "e", id, "sleep", "1000"), Timeout: time.Minute})
	time.Sleep(time.Duration(s.rand.IntN(150)) * time.Millisecond)
	if err := unix.Kill(shimOf(t, id), unix.SIGKILL); err != nil {
		t.Error(err)
	}
	s.waitStatus(t, id, "none")
	exec.Stop(t) // the client waits for an exit that nobody saw
	s.remove(t, id)
}

// shimKilledEarly kills the shim at any point of its container's creation.
func (s *soak) shimKilledEarly(t *testing.T, id string) {
	run := box.Start(t, harness.Cmd{Args: s.args(s.run(runtimeName, id, []string{"--rm"}, "sleep", "1000")...), Timeout: time.Minute})
	pid := 0
	for deadline := time.Now().Add(20 * time.Second); pid == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		pid = findShim(id)
	}
	time.Sleep(time.Duration(s.rand.IntN(40)) * time.Millisecond)
	if err := unix.Kill(pid, unix.SIGKILL); pid == 0 || err != nil && !errors.Is(err, unix.ESRCH) {
		t.Errorf("kill shim %d: %v", pid, err)
	}
	time.Sleep(200 * time.Millisecond)
	unix.Kill(-run.Pid(), unix.SIGKILL) //nolint:errcheck // it may have ended by itself
	run.Wait(t)
	s.remove(t, id)
}

// slowReader: a client that does not read its container's output.
func (s *soak) slowReader(t *testing.T, id string) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	// The client writes to our pipe, which nobody reads: it fills, then the FIFO, then the container's pipe.
	run := box.Start(t, harness.Cmd{Args: []string{"sh", "-c", `exec "$@" >&3`, "sh", s.client, "--address", s.socket(), "--namespace", box.Tag, "run", "--rm", "--runtime", runtimeName, harness.BusyboxName, id, "yes"}, Files: []*os.File{writer}, Timeout: time.Minute})
	writer.Close()
	s.waitStatus(t, id, "RUNNING")
	time.Sleep(50 * time.Millisecond)
	s.must(t, "tasks", "kill", "--signal", "SIGKILL", id)
	s.waitStatus(t, id, "STOPPED")
	run.Stop(t)
	s.remove(t, id)
}

// fullDisk: no room where bundles, FIFOs and states are. What was started before has to end, what is new may fail.
func (s *soak) fullDisk(t *testing.T, id string) {
	s.up(t, id, "sleep", "1000")
	filler := filepath.Join(s.disk, "filler")
	if err := fill(filler); err != nil {
		t.Fatal(err)
	}
	other := id + "-full"
	s.do(t, s.run(runtimeName, other, []string{"--rm"}, "true")...)
	s.must(t, "tasks", "kill", "--signal", "SIGKILL", id)
	s.waitStatus(t, id, "STOPPED")
	if r := s.do(t, "tasks", "delete", id); !strings.Contains(r.Stderr, "137") {
		t.Errorf("%v", r)
	}
	if err := os.Remove(filler); err != nil {
		t.Error(err)
	}
	s.remove(t, id)
	s.remove(t, other)
}

// fill writes a file until its disk is full.
func fill(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 4096)
	for {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// daemonKilled: containerd ends while a container runs, and comes back.
func (s *soak) daemonKilled(t *testing.T, id string) {
	s.up(t, id, "sh", "-c", "sleep 0.3; exit 7")
	s.crash(t)
	time.Sleep(time.Duration(s.rand.IntN(500)) * time.Millisecond)
	s.start(t)
	s.waitStatus(t, id, "STOPPED")
	if r := s.do(t, "tasks", "delete", id); !strings.Contains(r.Stderr, "exit code 7") {
		t.Errorf("%v", r)
	}
	s.remove(t, id)
}

// settle waits for what goes on behind answers.
func (s *soak) settle(t *testing.T) {
	t.Helper()
	if s.first == nil { // once a second has changed nothing
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
			last := s.first
			time.Sleep(time.Second)
			var err error
			if s.first, err = box.Snapshot(); err != nil {
				t.Fatal(err)
			}
			if last != nil && len(s.first.Since(last))+len(last.Since(s.first)) == 0 {
				break
			}
		}
		return
	}
	// A shim that nobody has called ends after 30 s. The socket of one that was killed before is removed by the next
	// clean-up, once it is 10 s old.
	const broken, age = 40 * time.Second, 11 * time.Second
	began := time.Now()
	for len(s.left(t)) > 0 && time.Since(began) < broken {
		time.Sleep(100 * time.Millisecond)
		if time.Since(began) > age && slices.ContainsFunc(s.left(t), func(l string) bool { return strings.HasPrefix(l, "file /run/containerd/s/") }) {
			s.shimKilled(t, box.ID())
		}
	}
}

// left lists what is there and was not at the first settling, other than the daemon itself, which has another number,
// and FIFOs of clients that were killed.
func (s *soak) left(t *testing.T) []string {
	t.Helper()
	now, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(now.Since(s.first), func(line string) bool {
		return strings.HasPrefix(line, "file /run/containerd/fifo/") || strings.HasPrefix(line, fmt.Sprintf("process %d ", s.cmd.Process.Pid))
	})
}

// count counts what could be left behind.
func (s *soak) count(t *testing.T) map[string]int {
	t.Helper()
	now, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{"process": "processes", "mount": "mounts", "cgroup": "cgroups", "link": "links", "file": "files in /run"}
	out := map[string]int{}
	for line := range now {
		kind, name, _ := strings.Cut(line, " ")
		if !strings.HasPrefix(name, "/run/containerd/fifo/") {
			out[kinds[kind]]++
		}
	}
	out["descriptors of containerd"] = entries(t, fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	out["descriptors of the test"] = entries(t, "/proc/self/fd")
	out["namespaces"] = namespaces(now)
	sockets, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(sockets)) { // named ones: connections come and go
		if f := strings.Fields(line); len(f) == 8 {
			out["sockets"]++
		}
	}
	return out
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// namespaces counts those of the processes that the box has started. One without a process is held by a mount or a
// descriptor, which are counted too.
func namespaces(now harness.Snapshot) int {
	found := map[string]bool{}
	for line := range now {
		var pid int
		if n, err := fmt.Sscanf(line, "process %d ", &pid); n != 1 || err != nil {
			continue
		}
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/ns/*", pid)) // the pattern is right
		for _, l := range links {
			if target, err := os.Readlink(l); err == nil {
				found[target] = true
			}
		}
	}
	return len(found)
}
