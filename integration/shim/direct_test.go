package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	events "github.com/containerd/containerd/api/events"
	task "github.com/containerd/containerd/api/runtime/task/v2"
	ttrpcevents "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/ttrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// daemon is what a shim sees of containerd: a socket that events are sent to.
type daemon struct {
	path   string
	server *ttrpc.Server

	mu     sync.Mutex
	events []event
}

// event is one that has arrived, as text: the topic and what tells it from others.
type event struct {
	text string
	any  *anypb.Any
}

// newDaemon starts one that ends with the test.
func newDaemon(t testing.TB) *daemon {
	t.Helper()
	d := &daemon{path: filepath.Join("/run", box.ID()+".ttrpc")}
	d.listen(t)
	t.Cleanup(func() {
		d.leave(t)
		os.Remove(d.path)
	})
	return d
}

func (d *daemon) listen(t testing.TB) {
	t.Helper()
	os.Remove(d.path)
	l, err := net.Listen("unix", d.path)
	if err != nil {
		t.Fatal(err)
	}
	if d.server, err = ttrpc.NewServer(); err != nil {
		t.Fatal(err)
	}
	ttrpcevents.RegisterTTRPCEventsService(d.server, d)
	go d.server.Serve(context.Background(), l) //nolint:errcheck // ends with leave
}

// leave is a daemon that is killed.
func (d *daemon) leave(testing.TB) {
	if d.server != nil {
		d.server.Close()
		d.server = nil
	}
}

// Forward implements containerd's events service.
func (d *daemon) Forward(_ context.Context, r *ttrpcevents.ForwardRequest) (*emptypb.Empty, error) {
	e := r.Envelope
	text := e.Topic
	switch e.Event.TypeUrl {
	case "containerd.events.TaskExit":
		var x events.TaskExit
		if proto.Unmarshal(e.Event.Value, &x) == nil {
			text += " " + x.ID
		}
	case "containerd.events.TaskExecAdded", "containerd.events.TaskExecStarted":
		var x events.TaskExecAdded
		if proto.Unmarshal(e.Event.Value, &x) == nil {
			text += " " + x.ExecID
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, event{text, e.Event})
	return &emptypb.Empty{}, nil
}

func (d *daemon) seen() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for _, e := range d.events {
		out = append(out, e.text)
	}
	return out
}

// waitFor waits until an event of this text has arrived.
func (d *daemon) waitFor(t testing.TB, text string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if slices.Contains(d.seen(), text) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no event %q, only:\n%s", text, strings.Join(d.seen(), "\n"))
		}
	}
}

// shim is a shim that the test has started, and a connection to it.
type shim struct {
	task.TTRPCTaskService
	daemon *daemon
	bundle harness.Bundle
	id     string
	socket string
	pid    int
	conn   net.Conn
	shared bool // another test shim stands for the same process, and waits for its end
}

// startShim starts the shim for a new bundle.
func startShim(t testing.TB, d *daemon, mutate func(*specs.Spec), flags ...string) *shim {
	t.Helper()
	b := box.Bundle(t, mutate)
	s := &shim{daemon: d, bundle: b, id: b.ID}
	if err := unix.Mkfifo(filepath.Join(b.Dir, "log"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(b.Dir, "log"), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.command("start", flags...).Output()
	if err != nil {
		t.Fatalf("start: %v: %s", err, stderrOf(err))
	}
	s.socket = strings.TrimPrefix(string(out), "unix://")
	s.connect(t)
	t.Cleanup(func() {
		s.destroy()
		if t.Failed() {
			data := make([]byte, 1<<16)
			log.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) //nolint:errcheck // a fifo has one
			n, _ := log.Read(data)
			t.Logf("log of the shim:\n%s", data[:n])
		}
		log.Close()
	})
	return s
}

func stderrOf(err error) []byte {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.Stderr
	}
	return nil
}

// command is an invocation of the program as containerd's for this container.
func (s *shim) command(action string, flags ...string) *exec.Cmd {
	args := slices.Concat([]string{"-namespace", box.Tag, "-address", "/run/none.sock", "-publish-binary", "/bin/true", "-id", s.id}, flags, []string{action})
	cmd := exec.Command(shimPath(), args...)
	cmd.Dir = s.bundle.Dir
	cmd.Env = append(os.Environ(), "TTRPC_ADDRESS="+s.daemon.path)
	return cmd
}

func (s *shim) connect(t testing.TB) {
	t.Helper()
	var err error
	if s.conn, err = net.Dial("unix", s.socket); err != nil {
		t.Fatal(err)
	}
	s.TTRPCTaskService = task.NewTTRPCTaskClient(ttrpc.NewClient(s.conn))
	c, err := s.Connect(timeout(t), &task.ConnectRequest{ID: s.id})
	if err != nil {
		t.Fatal(err)
	}
	s.pid = int(c.ShimPid)
}

// timeout is a context for one call.
func timeout(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// destroy removes whatever the test has left of the container, and of the shim if it serves no other.
func (s *shim) destroy() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := s.State(ctx, &task.StateRequest{ID: s.id}); err == nil {
		s.Kill(ctx, &task.KillRequest{ID: s.id, Signal: uint32(unix.SIGKILL)}) //nolint:errcheck // it may have ended
		s.Wait(ctx, &task.WaitRequest{ID: s.id})                               //nolint:errcheck // likewise
		s.TTRPCTaskService.Delete(ctx, &task.DeleteRequest{ID: s.id})          //nolint:errcheck // likewise
	}
	s.Shutdown(ctx, &task.ShutdownRequest{ID: s.id}) //nolint:errcheck // it may be gone
	s.conn.Close()
	for deadline := time.Now().Add(10 * time.Second); !s.shared && unix.Kill(s.pid, 0) == nil && time.Now().Before(deadline); {
		time.Sleep(2 * time.Millisecond)
	}
}

func (s *shim) create(t testing.TB, r *task.CreateTaskRequest) {
	t.Helper()
	r.ID, r.Bundle = s.id, s.bundle.Dir
	if _, err := s.Create(timeout(t), r); err != nil {
		t.Fatalf("create: %v", err)
	}
}

func (s *shim) start(t testing.TB, execID string) {
	t.Helper()
	if _, err := s.Start(timeout(t), &task.StartRequest{ID: s.id, ExecID: execID}); err != nil {
		t.Fatalf("start %q: %v", execID, err)
	}
}

func (s *shim) run(t testing.TB) {
	t.Helper()
	s.create(t, &task.CreateTaskRequest{})
	s.start(t, "")
}

func (s *shim) wait(t testing.TB, execID string) int {
	t.Helper()
	r, err := s.Wait(timeout(t), &task.WaitRequest{ID: s.id, ExecID: execID})
	if err != nil {
		t.Fatalf("wait %q: %v", execID, err)
	}
	return int(r.ExitStatus)
}

func (s *shim) kill(t testing.TB) {
	t.Helper()
	if _, err := s.Kill(timeout(t), &task.KillRequest{ID: s.id, Signal: uint32(unix.SIGKILL)}); err != nil {
		t.Fatalf("kill: %v", err)
	}
}

func (s *shim) delete(t testing.TB, execID string) *task.DeleteResponse {
	t.Helper()
	r, err := s.TTRPCTaskService.Delete(timeout(t), &task.DeleteRequest{ID: s.id, ExecID: execID})
	if err != nil {
		t.Fatalf("delete %q: %v", execID, err)
	}
	return r
}

// exec reserves a process that runs a shell command.
func (s *shim) exec(t testing.TB, execID, script string) {
	t.Helper()
	r := &task.ExecProcessRequest{ID: s.id, ExecID: execID, Spec: execSpec(t, "/bin/sh", "-c", script)}
	if _, err := s.Exec(timeout(t), r); err != nil {
		t.Fatalf("exec %q: %v", execID, err)
	}
}

func execSpec(t testing.TB, args ...string) *anypb.Any {
	t.Helper()
	p := harness.DefaultSpec().Process
	p.Args = args
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: data}
}

// wantCode checks the code of an error.
func wantCode(t testing.TB, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: got %v (%v), want %v", what, got, err, want)
	}
}

// fifo makes a FIFO; with it the shim may be given the path.
func fifo(t testing.TB, s *shim, name string) string {
	t.Helper()
	path := filepath.Join(s.bundle.Dir, name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// collect reads a FIFO to its end, beside the test; the result is there when done is closed.
func collect(path string) (out *bytes.Buffer, done chan struct{}) {
	out, done = &bytes.Buffer{}, make(chan struct{})
	go func() {
		defer close(done)
		f, err := os.Open(path)
		if err != nil {
			return
		}
		defer f.Close()
		out.ReadFrom(f) //nolint:errcheck // what has been read counts
	}()
	return out, done
}

func within(t testing.TB, d time.Duration, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatalf("%s: not within %v", what, d)
	}
}
