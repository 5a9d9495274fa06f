package shim

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	tasktypes "github.com/containerd/containerd/api/types/task"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func TestEventsInOrder(t *testing.T) {
	d := newDaemon(t)
	s := startShim(t, d, harness.Sh("sleep 1000"))
	s.run(t)
	s.exec(t, "e1", "exit 3")
	s.start(t, "e1")
	if got := s.wait(t, "e1"); got != 3 {
		t.Errorf("exec ended with %d, want 3", got)
	}
	s.delete(t, "e1")
	s.exec(t, "e2", "sleep 1000")
	s.start(t, "e2")
	s.kill(t)
	if got := s.wait(t, ""); got != 137 {
		t.Errorf("container ended with %d, want 137", got)
	}
	if r := s.delete(t, ""); r.ExitStatus != 137 || r.ExitedAt.AsTime().IsZero() {
		t.Errorf("delete says %v", r)
	}
	d.waitFor(t, "/tasks/delete")
	want := []string{
		"/tasks/create", "/tasks/start", "/tasks/exec-added e1", "/tasks/exec-started e1", "/tasks/exit e1",
		"/tasks/exec-added e2", "/tasks/exec-started e2", "/tasks/exit e2", "/tasks/exit " + s.id, "/tasks/delete",
	}
	if got := d.seen(); !slices.Equal(got, want) {
		t.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A first process that ends before it was started, or as soon as it was, still has its events in order.
func TestEventsOfShortLives(t *testing.T) {
	d := newDaemon(t)
	s := startShim(t, d, nil)
	s.create(t, &task.CreateTaskRequest{})
	s.kill(t)
	s.wait(t, "")
	s.delete(t, "")
	d.waitFor(t, "/tasks/delete")
	if got, want := d.seen(), []string{"/tasks/create", "/tasks/exit " + s.id, "/tasks/delete"}; !slices.Equal(got, want) {
		t.Errorf("killed before start: %v", got)
	}
	for range 20 {
		d := newDaemon(t)
		s := startShim(t, d, nil)
		s.run(t)
		s.wait(t, "")
		s.delete(t, "")
		d.waitFor(t, "/tasks/delete")
		if got, want := d.seen(), []string{"/tasks/create", "/tasks/start", "/tasks/exit " + s.id, "/tasks/delete"}; !slices.Equal(got, want) {
			t.Fatalf("true: %v", got)
		}
	}
}

func TestCallsForUnknownIDs(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("sleep 1000"))
	s.run(t)
	ctx := timeout(t)
	for _, id := range []string{"nobody", ""} {
		for what, call := range map[string]func() error{
			"state":      func() error { _, err := s.State(ctx, &task.StateRequest{ID: id}); return err },
			"start":      func() error { _, err := s.Start(ctx, &task.StartRequest{ID: id}); return err },
			"delete":     func() error { _, err := s.Delete(ctx, &task.DeleteRequest{ID: id}); return err },
			"pids":       func() error { _, err := s.Pids(ctx, &task.PidsRequest{ID: id}); return err },
			"pause":      func() error { _, err := s.Pause(ctx, &task.PauseRequest{ID: id}); return err },
			"resume":     func() error { _, err := s.Resume(ctx, &task.ResumeRequest{ID: id}); return err },
			"checkpoint": func() error { _, err := s.Checkpoint(ctx, &task.CheckpointTaskRequest{ID: id}); return err },
			"kill":       func() error { _, err := s.Kill(ctx, &task.KillRequest{ID: id, Signal: 9}); return err },
			"exec":       func() error { _, err := s.Exec(ctx, &task.ExecProcessRequest{ID: id, ExecID: "e"}); return err },
			"resize":     func() error { _, err := s.ResizePty(ctx, &task.ResizePtyRequest{ID: id}); return err },
			"closeio":    func() error { _, err := s.CloseIO(ctx, &task.CloseIORequest{ID: id, Stdin: true}); return err },
			"update":     func() error { _, err := s.Update(ctx, &task.UpdateTaskRequest{ID: id}); return err },
			"wait":       func() error { _, err := s.Wait(ctx, &task.WaitRequest{ID: id}); return err },
			"stats":      func() error { _, err := s.Stats(ctx, &task.StatsRequest{ID: id}); return err },
		} {
			wantCode(t, what, call(), codes.NotFound)
		}
	}
	for what, call := range map[string]func() error{
		"state":  func() error { _, err := s.State(ctx, &task.StateRequest{ID: s.id, ExecID: "no"}); return err },
		"start":  func() error { _, err := s.Start(ctx, &task.StartRequest{ID: s.id, ExecID: "no"}); return err },
		"delete": func() error { _, err := s.Delete(ctx, &task.DeleteRequest{ID: s.id, ExecID: "no"}); return err },
		"kill":   func() error { _, err := s.Kill(ctx, &task.KillRequest{ID: s.id, ExecID: "no", Signal: 9}); return err },
		"wait":   func() error { _, err := s.Wait(ctx, &task.WaitRequest{ID: s.id, ExecID: "no"}); return err },
		"resize": func() error { _, err := s.ResizePty(ctx, &task.ResizePtyRequest{ID: s.id, ExecID: "no"}); return err },
	} {
		wantCode(t, what+" of an exec", call(), codes.NotFound)
	}
}

func TestBadCreates(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("sleep 1000"))
	for _, tc := range []struct {
		name string
		r    *task.CreateTaskRequest
		want codes.Code
	}{
		{"options of an unknown type", &task.CreateTaskRequest{Options: &anypb.Any{TypeUrl: "example.com/Options", Value: []byte{1}}}, codes.InvalidArgument},
		{"options that do not decode", &task.CreateTaskRequest{Options: &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: []byte{0xff}}}, codes.InvalidArgument},
		{"unknown scheme", &task.CreateTaskRequest{Stdout: "gopher:///x"}, codes.InvalidArgument},
		{"relative log file", &task.CreateTaskRequest{Stdout: "file://x/y"}, codes.InvalidArgument},
		{"log program that is missing", &task.CreateTaskRequest{Stdout: "binary:///no/such/program"}, codes.InvalidArgument},
		{"terminal that the spec lacks", &task.CreateTaskRequest{Terminal: true}, codes.InvalidArgument},
		{"checkpoint under a profile", &task.CreateTaskRequest{Checkpoint: "/x"}, codes.PermissionDenied},
	} {
		tc.r.ID, tc.r.Bundle = s.id, s.bundle.Dir
		_, err := s.Create(timeout(t), tc.r)
		wantCode(t, tc.name, err, tc.want)
	}
	_, err := s.Create(timeout(t), &task.CreateTaskRequest{ID: s.id, Bundle: "relative"})
	wantCode(t, "relative bundle", err, codes.InvalidArgument)
	_, err = s.Create(timeout(t), &task.CreateTaskRequest{ID: "../x", Bundle: s.bundle.Dir})
	wantCode(t, "id with a slash", err, codes.InvalidArgument)
	s.run(t) // what failed has left nothing in the way
	_, err = s.Create(timeout(t), &task.CreateTaskRequest{ID: s.id, Bundle: s.bundle.Dir})
	wantCode(t, "id again", err, codes.AlreadyExists)
}

func TestCallsInTheWrongOrder(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("sleep 1000"))
	ctx := timeout(t)
	s.create(t, &task.CreateTaskRequest{})
	s.start(t, "")
	_, err := s.Start(ctx, &task.StartRequest{ID: s.id})
	wantCode(t, "start twice", err, codes.FailedPrecondition)
	_, err = s.Delete(ctx, &task.DeleteRequest{ID: s.id})
	wantCode(t, "delete of a running container", err, codes.FailedPrecondition)
	_, err = s.Resume(ctx, &task.ResumeRequest{ID: s.id})
	wantCode(t, "resume of a running container", err, codes.FailedPrecondition)
	_, err = s.Checkpoint(ctx, &task.CheckpointTaskRequest{ID: s.id})
	wantCode(t, "checkpoint under a profile", err, codes.PermissionDenied)
	_, err = s.Checkpoint(ctx, &task.CheckpointTaskRequest{ID: s.id, Options: &anypb.Any{TypeUrl: "x"}})
	wantCode(t, "checkpoint with options of an unknown type", err, codes.InvalidArgument)
	for _, n := range []uint32{0, 65, 1 << 31} {
		_, err = s.Kill(ctx, &task.KillRequest{ID: s.id, Signal: n})
		wantCode(t, fmt.Sprintf("signal %d", n), err, codes.InvalidArgument)
	}
	_, err = s.Update(ctx, &task.UpdateTaskRequest{ID: s.id, Resources: &anypb.Any{TypeUrl: "x", Value: []byte("{}")}})
	wantCode(t, "limits of an unknown type", err, codes.InvalidArgument)
	_, err = s.ResizePty(ctx, &task.ResizePtyRequest{ID: s.id, Width: 1 << 20})
	wantCode(t, "huge terminal", err, codes.InvalidArgument)

	s.exec(t, "e", "sleep 1000")
	_, err = s.Exec(ctx, &task.ExecProcessRequest{ID: s.id, ExecID: "e", Spec: execSpec(t, "true")})
	wantCode(t, "exec id again", err, codes.AlreadyExists)
	_, err = s.Exec(ctx, &task.ExecProcessRequest{ID: s.id, ExecID: "a/b", Spec: execSpec(t, "true")})
	wantCode(t, "exec id with a slash", err, codes.InvalidArgument)
	_, err = s.Exec(ctx, &task.ExecProcessRequest{ID: s.id, ExecID: "f", Spec: &anypb.Any{TypeUrl: "x"}})
	wantCode(t, "exec spec of an unknown type", err, codes.InvalidArgument)
	_, err = s.Kill(ctx, &task.KillRequest{ID: s.id, ExecID: "e", Signal: 9})
	wantCode(t, "kill of an exec that was not started", err, codes.FailedPrecondition)
	s.start(t, "e")
	_, err = s.Start(ctx, &task.StartRequest{ID: s.id, ExecID: "e"})
	wantCode(t, "start of an exec twice", err, codes.FailedPrecondition)
	_, err = s.Delete(ctx, &task.DeleteRequest{ID: s.id, ExecID: "e"})
	wantCode(t, "delete of a running exec", err, codes.FailedPrecondition)

	s.exec(t, "g", "true")
	s.kill(t)
	s.wait(t, "")
	_, err = s.Start(ctx, &task.StartRequest{ID: s.id, ExecID: "g"})
	wantCode(t, "exec in an ended container", err, codes.FailedPrecondition)
	_, err = s.Kill(ctx, &task.KillRequest{ID: s.id, Signal: 9})
	wantCode(t, "kill of an ended container", err, codes.NotFound)
	_, err = s.ResizePty(ctx, &task.ResizePtyRequest{ID: s.id, Width: 80, Height: 24})
	wantCode(t, "resize of an ended container", err, codes.FailedPrecondition)
	_, err = s.Start(ctx, &task.StartRequest{ID: s.id})
	wantCode(t, "start of an ended container", err, codes.FailedPrecondition)
	_, err = s.Pause(ctx, &task.PauseRequest{ID: s.id})
	wantCode(t, "pause of an ended container", err, codes.FailedPrecondition)
}

// An exec that can't be started must not keep anybody waiting, nor its id.
func TestExecThatFails(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("sleep 1000"))
	s.run(t)
	if _, err := s.Exec(timeout(t), &task.ExecProcessRequest{ID: s.id, ExecID: "e", Spec: execSpec(t, "no-such-program")}); err != nil {
		t.Fatal(err)
	}
	waited := make(chan struct{})
	go func() {
		s.Wait(timeout(t), &task.WaitRequest{ID: s.id, ExecID: "e"}) //nolint:errcheck // that it returns is what counts
		close(waited)
	}()
	_, err := s.Start(timeout(t), &task.StartRequest{ID: s.id, ExecID: "e"})
	if err == nil || !strings.Contains(err.Error(), "executable file not found in $PATH") {
		t.Errorf("got %v", err)
	}
	within(t, 5*time.Second, "wait for an exec that failed", waited)
	s.delete(t, "e")
	s.exec(t, "e", "exit 4")
	s.start(t, "e")
	if got := s.wait(t, "e"); got != 4 {
		t.Errorf("got %d", got)
	}
}

func TestStates(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("sleep 1000"))
	want := func(want tasktypes.Status) {
		t.Helper()
		r, err := s.State(timeout(t), &task.StateRequest{ID: s.id})
		if err != nil || r.Status != want {
			t.Errorf("got %v, %v, want %v", r.GetStatus(), err, want)
		}
	}
	s.create(t, &task.CreateTaskRequest{})
	want(tasktypes.Status_CREATED)
	s.start(t, "")
	want(tasktypes.Status_RUNNING)
	if _, err := s.Pause(timeout(t), &task.PauseRequest{ID: s.id}); err != nil {
		t.Fatal(err)
	}
	want(tasktypes.Status_PAUSED)
	if _, err := s.Resume(timeout(t), &task.ResumeRequest{ID: s.id}); err != nil {
		t.Fatal(err)
	}
	want(tasktypes.Status_RUNNING)
	limits, err := json.Marshal(specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(50))}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Update(timeout(t), &task.UpdateTaskRequest{ID: s.id, Resources: &anypb.Any{
		TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: limits,
	}})
	if err != nil {
		t.Errorf("update: %v", err)
	}
	stats, err := s.Stats(timeout(t), &task.StatsRequest{ID: s.id})
	if err != nil || !strings.HasPrefix(stats.Stats.TypeUrl, "io.containerd.cgroups.v") {
		t.Errorf("stats: %v, %v", stats.GetStats().GetTypeUrl(), err)
	}
	s.exec(t, "e", "sleep 1000")
	s.start(t, "e")
	pids, err := s.Pids(timeout(t), &task.PidsRequest{ID: s.id})
	if err != nil || len(pids.Processes) != 2 {
		t.Errorf("pids: %v, %v", pids, err)
	}
	// A process that is ended while it is frozen.
	if _, err := s.Pause(timeout(t), &task.PauseRequest{ID: s.id}); err != nil {
		t.Fatal(err)
	}
	s.kill(t)
	s.wait(t, "")
	want(tasktypes.Status_STOPPED)
	// A containerd that comes back removes shims without processes, and with this one the exit status.
	pids, err = s.Pids(timeout(t), &task.PidsRequest{ID: s.id})
	if err != nil || len(pids.Processes) != 1 {
		t.Errorf("pids of a container that has ended: %v, %v", pids, err)
	}
}

func TestSocketIsPrivate(t *testing.T) {
	s := startShim(t, newDaemon(t), nil)
	for path, want := range map[string]os.FileMode{s.socket: 0o600, filepath.Dir(s.socket): 0o700} {
		st, err := os.Stat(path)
		if err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, st.Mode().Perm(), err, want)
		}
	}
	unixSockets, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(unixSockets), "@") && strings.Contains(string(unixSockets), "agentsafe") && strings.Contains(string(unixSockets), "@/run/agentsafe") {
		t.Error("an abstract socket (CVE-2020-15257)")
	}
}

// Profiles are there with -debug and nowhere else, and the socket goes with the shim.
func TestProfilesBehindDebug(t *testing.T) {
	plain := startShim(t, newDaemon(t), nil)
	if _, err := os.Stat(plain.socket + ".debug"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without -debug: %v", err)
	}
	s := startShim(t, newDaemon(t), nil, "-debug")
	path := s.socket + ".debug"
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", st, err)
	}
	ask := func(line string) []byte {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintln(conn, line)
		data, err := io.ReadAll(conn)
		if err != nil {
			t.Error(err)
		}
		return data
	}
	for _, line := range []string{"heap", "goroutine", "profile 1"} {
		z, err := gzip.NewReader(bytes.NewReader(ask(line)))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		data, err := io.ReadAll(z)
		if err != nil || !bytes.Contains(data, []byte("nanoseconds")) && !bytes.Contains(data, []byte("count")) {
			t.Errorf("%s: %v: %q", line, err, data)
		}
	}
	for _, line := range []string{"secrets", "profile 9999", "profile"} {
		if got := ask(line); !bytes.HasPrefix(got, []byte("agentsafe: ")) {
			t.Errorf("%s: %q", line, got)
		}
	}
	s.destroy()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the shim's end: %v", err)
	}
}

// What the shim sets for itself must not reach a container.
func TestContainerInheritsNothing(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("grep -E '^Sig(Ign|Blk)' /proc/self/status; ls /proc/self/fd | wc -l; ulimit -n; umask"))
	out := fifo(t, s, "out")
	got, done := collect(out)
	s.create(t, &task.CreateTaskRequest{Stdout: out})
	s.start(t, "")
	within(t, 10*time.Second, "output", done)
	lines := strings.Split(got.String(), "\n")
	// What the caller of everything ignores is inherited by every process, under any runtime.
	ignored := "0000000000000000"
	if own, err := os.ReadFile("/proc/self/status"); err == nil {
		_, rest, _ := strings.Cut(string(own), "SigIgn:\t")
		ignored, _, _ = strings.Cut(rest, "\n")
	}
	if len(lines) < 5 || !strings.HasSuffix(lines[0], "0000000000000000") || !strings.HasSuffix(lines[1], ignored) || lines[2] != "4" || lines[4] != "0022" {
		t.Errorf("got %q", lines)
	}
	s.wait(t, "")
}
