package shim

import (
	"context"
	"os"
	"sync"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/shim/options"
)

// Config is what a Service needs of its surroundings.
type Config struct {
	// Namespace is containerd's.
	Namespace string
	// Version is the program's, for the evidence.
	Version string
	// Publisher gets the events.
	Publisher *Publisher
	// Open returns the runtime for the options of a task. Runtimes of equal options may be the same one.
	Open func(o options.Options) (*container.Runtime, error)
	// Profile is the policy of tasks whose options name none.
	Profile string
	// Options are the handler's, for a sandbox; tasks bring their own.
	Options options.Options
	// Shutdown is called once, when the last task is gone and containerd asks for the end.
	Shutdown func()
	Log      Log
}

// Log gets one line for each thing worth telling, with the id of the container it is about.
type Log interface {
	Debug(id, message string)
	Warn(id, message string)
	Error(id, message string)
}

// Service implements the task API. It is safe for concurrent use.
type Service struct {
	cfg Config

	// execs are the places for execs that are being started: each keeps a thread until its program runs, and Go never
	// gives threads back.
	execs chan struct{}

	mu       sync.Mutex
	tasks    map[string]*Task // a nil task is being created
	sandbox  *sandbox         // by the sandbox API
	stopping bool
	// sandboxGone says that the sandbox has been shut down, so that the shim ends with its last task.
	sandboxGone bool
}

// maxStarting bounds the execs that are started at the same time; more would wait for a processor in any case.
const maxStarting = 16

// New returns a Service without tasks.
func New(cfg Config) *Service {
	return &Service{cfg: cfg, tasks: map[string]*Task{}, execs: make(chan struct{}, maxStarting)}
}

// task finds a task that has been created.
func (s *Service) task(id string) (*Task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[id]
	if t == nil {
		return nil, notFound("container %q is not in this shim", id)
	}
	return t, nil
}

// process finds a process of a task; the empty exec id is the first process.
func (s *Service) process(id, execID string) (*Task, *process, error) {
	t, err := s.task(id)
	if err != nil {
		return nil, nil, err
	}
	p, err := t.process(execID)
	return t, p, err
}

// Connect tells the shim's pid and the task's.
func (s *Service) Connect(_ context.Context, r *task.ConnectRequest) (*task.ConnectResponse, error) {
	out := &task.ConnectResponse{ShimPid: uint32(os.Getpid())} //nolint:gosec // pids fit
	if t, err := s.task(r.ID); err == nil {
		out.TaskPid = t.init.pid32()
	}
	return out, nil
}

// Shutdown ends the shim if it has no tasks. containerd calls it after each deletion, so with others left it is no error.
func (s *Service) Shutdown(context.Context, *task.ShutdownRequest) (*emptypb.Empty, error) {
	s.EndIfIdle()
	return &emptypb.Empty{}, nil
}

// EndIfIdle ends the shim if it has nothing left, and tells whether this was what ended it.
func (s *Service) EndIfIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tasks) > 0 || s.sandbox != nil || s.stopping {
		return false
	}
	s.stopping = true
	s.cfg.Shutdown()
	return true
}
