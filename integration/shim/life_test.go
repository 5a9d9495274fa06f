package shim

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	stats1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	stats2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/api/types"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func TestKilledShimLeavesNothing(t *testing.T) {
	before, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, started := range []bool{false, true} {
		s := startShim(t, newDaemon(t), harness.Sh("sleep 1000"))
		s.create(t, &task.CreateTaskRequest{})
		if started {
			s.start(t, "")
			s.exec(t, "e", "sleep 1000")
			s.start(t, "e")
		}
		if err := unix.Kill(s.pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		out, err := s.command("delete").Output()
		if err != nil {
			t.Fatalf("delete: %v: %s", err, stderrOf(err))
		}
		var r task.DeleteResponse
		if err := proto.Unmarshal(out, &r); err != nil || r.ExitStatus != 137 || r.Pid == 0 {
			t.Errorf("delete prints %v, %v", &r, err)
		}
		// Again, as containerd may: nothing is left to do.
		if _, err := s.command("delete").Output(); err != nil {
			t.Errorf("second delete: %v: %s", err, stderrOf(err))
		}
		os.Remove(s.daemon.path)
		s.daemon.leave(t)
	}
	left := slices.DeleteFunc(box.Leftovers(before), func(l string) bool { return strings.HasSuffix(l, ".ttrpc") })
	if len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// A container that had ended before its shim was killed keeps its exit status.
func TestKilledShimKeepsTheExit(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("exit 42"))
	s.run(t)
	s.wait(t, "")
	s.daemon.waitFor(t, "/tasks/exit "+s.id)
	time.Sleep(50 * time.Millisecond)
	if err := unix.Kill(s.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	out, err := s.command("delete").Output()
	if err != nil {
		t.Fatal(err)
	}
	var r task.DeleteResponse
	if err := proto.Unmarshal(out, &r); err != nil || r.ExitStatus != 42 {
		t.Errorf("delete prints %v, %v", &r, err)
	}
}

func TestEventsAfterTheDaemonWasAway(t *testing.T) {
	d := newDaemon(t)
	s := startShim(t, d, harness.Sh("sleep 0.3; exit 7"))
	s.run(t)
	d.waitFor(t, "/tasks/start")
	d.leave(t)
	s.conn.Close()
	time.Sleep(800 * time.Millisecond)
	d.listen(t)
	s.connect(t)
	if got := s.wait(t, ""); got != 7 {
		t.Errorf("got %d", got)
	}
	d.waitFor(t, "/tasks/exit "+s.id)
	if got, want := d.seen(), []string{"/tasks/create", "/tasks/start", "/tasks/exit " + s.id}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestOOMComesBeforeTheExit(t *testing.T) {
	d := newDaemon(t)
	s := startShim(t, d, func(spec *specs.Spec) {
		harness.Sh("head -c 200m /dev/zero | tail >/dev/null; exit 9")(spec)
		spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(20 << 20)), Swap: new(int64(20 << 20))}
	})
	s.run(t)
	s.wait(t, "")
	d.waitFor(t, "/tasks/exit "+s.id)
	seen := d.seen()
	oom, exit := slices.Index(seen, "/tasks/oom"), slices.Index(seen, "/tasks/exit "+s.id)
	if oom < 0 || oom > exit {
		t.Errorf("events: %v", seen)
	}
	r, err := s.Stats(timeout(t), &task.StatsRequest{ID: s.id})
	if err != nil {
		t.Fatal(err)
	}
	var v1 stats1.Metrics
	var v2 stats2.Metrics
	var into proto.Message = &v1
	if strings.Contains(r.Stats.TypeUrl, ".v2.") {
		into = &v2
	}
	if err := proto.Unmarshal(r.Stats.Value, into); err != nil {
		t.Fatal(err)
	}
	if v1.GetMemoryOomControl().GetOomKill()+v2.GetMemoryEvents().GetOomKill() == 0 {
		t.Errorf("the statistics do not tell of the kill: %v %v", v1.GetMemoryOomControl(), v2.GetMemoryEvents())
	}
}

// Containers of one group share a shim, which lives until the last of them is deleted.
func TestGroup(t *testing.T) {
	d := newDaemon(t)
	group := func(script string) func(*specs.Spec) {
		return func(spec *specs.Spec) {
			harness.Sh(script)(spec)
			spec.Annotations = map[string]string{"io.kubernetes.cri.sandbox-id": box.Tag + "-pod"}
		}
	}
	a, b := startShim(t, d, group("sleep 1000")), startShim(t, d, group("exit 5"))
	if a.pid != b.pid || a.socket != b.socket {
		t.Fatalf("two shims: %d at %s, %d at %s", a.pid, a.socket, b.pid, b.socket)
	}
	b.shared = true
	a.run(t)
	b.run(t)
	if got := b.wait(t, ""); got != 5 {
		t.Errorf("got %d", got)
	}
	b.delete(t, "")
	if _, err := b.Shutdown(timeout(t), &task.ShutdownRequest{ID: b.id}); err != nil {
		t.Fatal(err)
	}
	a.exec(t, "e", "exit 6")
	a.start(t, "e")
	if got := a.wait(t, "e"); got != 6 {
		t.Errorf("the other one's exec: got %d", got)
	}
}

func TestTwoHundredExecs(t *testing.T) {
	const n = 200
	d := newDaemon(t)
	s := startShim(t, d, harness.Sh("sleep 1000"))
	s.run(t)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			id := "e" + strconv.Itoa(i)
			out := filepath.Join(s.bundle.Dir, id)
			if err := unix.Mkfifo(out, 0o600); err != nil {
				t.Error(err)
				return
			}
			got, done := collect(out)
			want := fmt.Sprintf("%d\n", i)
			_, err := s.Exec(timeout(t), &task.ExecProcessRequest{
				ID: s.id, ExecID: id, Stdout: out, Spec: execSpec(t, "/bin/sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i%100)),
			})
			if err == nil {
				_, err = s.Start(timeout(t), &task.StartRequest{ID: s.id, ExecID: id})
			}
			if err != nil {
				t.Errorf("exec %d: %v", i, err)
				return
			}
			r, err := s.Wait(timeout(t), &task.WaitRequest{ID: s.id, ExecID: id})
			if err != nil || int(r.ExitStatus) != i%100 {
				t.Errorf("exec %d: %v, %v", i, r, err)
			}
			<-done
			if !bytes.Equal(got.Bytes(), []byte(want)) {
				t.Errorf("exec %d: output %q", i, got)
			}
			if _, err := s.TTRPCTaskService.Delete(timeout(t), &task.DeleteRequest{ID: s.id, ExecID: id}); err != nil {
				t.Errorf("exec %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for _, name := range []string{"fd", "task"} {
		if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", s.pid, name)); err != nil || len(entries) > 40 {
			t.Errorf("the shim has %d entries in %s, %v", len(entries), name, err)
		}
	}
	s.kill(t)
	s.wait(t, "")
	d.waitFor(t, "/tasks/exit "+s.id)
	seen := d.seen()
	if got := len(slices.DeleteFunc(slices.Clone(seen), func(e string) bool { return !strings.HasPrefix(e, "/tasks/exit e") })); got != n {
		t.Errorf("%d exits of %d", got, n)
	}
}

// 100 containers at once in one shim: nothing fails, and each costs little.
func TestOneHundredContainers(t *testing.T) {
	const n, mostKiB = 100, 2 << 10
	d := newDaemon(t)
	pod := func(spec *specs.Spec) {
		harness.Sh("trap 'exit 3' TERM; while :; do sleep 0.1; done")(spec)
		spec.Annotations = map[string]string{"io.containerd.runc.v2.group": box.Tag + "-many"}
	}
	first := startShim(t, d, pod)
	first.run(t)
	one := residentKiB(t, first.pid)
	var shims []*shim
	for range n {
		s := startShim(t, d, pod)
		s.shared = true
		shims = append(shims, s)
	}
	each := func(do func(s *shim)) {
		var wg sync.WaitGroup
		for _, s := range shims {
			wg.Go(func() {
				do(s)
			})
		}
		wg.Wait()
	}
	each(func(s *shim) {
		if _, err := s.Create(timeout(t), &task.CreateTaskRequest{ID: s.id, Bundle: s.bundle.Dir}); err != nil {
			t.Errorf("create: %v", err)
			return
		}
		if _, err := s.Start(timeout(t), &task.StartRequest{ID: s.id}); err != nil {
			t.Errorf("start: %v", err)
		}
	})
	all := residentKiB(t, first.pid)
	t.Logf("one container: %d KiB, %d more: %d KiB, each %d KiB", one, n, all, (all-one)/n)
	if (all-one)/n > mostKiB {
		t.Errorf("each container costs %d KiB", (all-one)/n)
	}
	each(func(s *shim) {
		s.Kill(timeout(t), &task.KillRequest{ID: s.id, Signal: uint32(unix.SIGKILL)}) //nolint:errcheck // Wait tells
		if r, err := s.Wait(timeout(t), &task.WaitRequest{ID: s.id}); err != nil || r.ExitStatus != 137 {
			t.Errorf("wait: %v, %v", r, err)
		}
		if _, err := s.TTRPCTaskService.Delete(timeout(t), &task.DeleteRequest{ID: s.id}); err != nil {
			t.Errorf("delete: %v", err)
		}
	})
}

// A shim that nobody calls gives back what its start needed, and serves as before.
func TestRest(t *testing.T) {
	if os.Getenv("GORACE") != "" {
		t.Skip("probe race detector: its own memory is most of the program's")
	}
	s := startShim(t, newDaemon(t), nil)
	s.run(t)
	fresh := residentKiB(t, s.pid)
	deadline := time.Now().Add(time.Minute)
	for now := fresh; now > fresh/2; now = residentKiB(t, s.pid) {
		if time.Now().After(deadline) {
			t.Fatalf("%d KiB after a minute of rest, %d before", now, fresh)
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("%d KiB fresh, %d after a rest", fresh, residentKiB(t, s.pid))
	if r, err := s.State(timeout(t), &task.StateRequest{ID: s.id}); err != nil || r.Pid == 0 {
		t.Errorf("state after a rest: %v, %v", r, err)
	}
}

// A shim that containerd has forgotten before it had a task ends by itself, also if somebody looks whether it lives; one
// with a task stays.
func TestForgotten(t *testing.T) {
	d := newDaemon(t)
	used, forgotten := startShim(t, d, nil), startShim(t, d, nil)
	used.run(t)
	deadline := time.Now().Add(harness.Stretch(90 * time.Second))
	for unix.Kill(forgotten.pid, 0) == nil {
		if time.Now().After(deadline) {
			t.Fatal("the forgotten shim goes on")
		}
		if c, err := net.Dial("unix", forgotten.socket); err == nil {
			c.Close()
		}
		time.Sleep(time.Second)
	}
	if _, err := os.Lstat(forgotten.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its socket stays: %v", err)
	}
	if r, err := used.State(timeout(t), &task.StateRequest{ID: used.id}); err != nil || r.Pid == 0 {
		t.Errorf("the other one: %v, %v", r, err)
	}
}

func residentKiB(t testing.TB, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// start answers each daemon in the form that it takes.
func TestStartAnswers(t *testing.T) {
	s := startShim(t, newDaemon(t), nil) // checks the bare address
	params, err := proto.Marshal(&bootapi.BootstrapParams{InstanceID: s.id, Namespace: box.Tag})
	if err != nil {
		t.Fatal(err)
	}
	cmd := s.command("start")
	cmd.Stdin = bytes.NewReader(params)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderrOf(err))
	}
	var r bootapi.BootstrapResult
	if err := proto.Unmarshal(out, &r); err != nil || r.Version != 3 || r.Protocol != "ttrpc" || r.Address != "unix://"+s.socket {
		t.Errorf("got %v, %v", &r, err)
	}
	// Parameters for somebody else are options of an older daemon.
	params, err = proto.Marshal(&bootapi.BootstrapParams{InstanceID: "other", Namespace: box.Tag})
	if err != nil {
		t.Fatal(err)
	}
	cmd = s.command("start")
	cmd.Stdin = bytes.NewReader(params)
	if out, err := cmd.Output(); err != nil || string(out) != "unix://"+s.socket {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestInfo(t *testing.T) {
	cmd := (&shim{daemon: &daemon{}, bundle: harness.Bundle{Dir: "/"}, id: "x"}).command("")
	cmd.Args = []string{shimPath(), "-info"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var info types.RuntimeInfo
	if err := proto.Unmarshal(out, &info); err != nil || info.Name != "io.containerd.agentsafe.v2" {
		t.Fatalf("got %v, %v", &info, err)
	}
	if !strings.Contains(string(info.Features.GetValue()), `"ociVersionMax"`) {
		t.Errorf("features: %s", info.Features)
	}
}
