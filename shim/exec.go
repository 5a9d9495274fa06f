package shim

import (
	"context"
	"errors"

	events "github.com/containerd/containerd/api/events"
	task "github.com/containerd/containerd/api/runtime/task/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/shim/stdio"
)

// processType is how containerd names the JSON of an OCI process. Source: containerd, core/runtime/typeurl.go.
const processType = "types.containerd.io/opencontainers/runtime-spec/1/Process"

// Exec reserves a further process; Start starts it.
func (s *Service) Exec(_ context.Context, r *task.ExecProcessRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	if err := container.ValidateID(r.ExecID); err != nil {
		return nil, invalidArgument("exec id: %s", err)
	}
	if r.Spec == nil || r.Spec.TypeUrl != processType {
		return nil, invalidArgument("exec spec is of type %q instead of %q", r.Spec.GetTypeUrl(), processType)
	}
	var spec specs.Process
	if err := container.DecodeJSON(r.Spec.Value, "exec spec", &spec); err != nil {
		return nil, invalidArgument("%s", err)
	}
	spec.Terminal = r.Terminal
	p := &process{
		task: t, execID: r.ExecID, spec: &spec, done: make(chan struct{}),
		at: stdio.Addresses{Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Terminal: r.Terminal},
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.execs[r.ExecID]; ok {
		return nil, alreadyExists("exec %q of container %q exists", r.ExecID, t.id)
	}
	t.execs[r.ExecID] = p
	t.publish(topicExecAdded, &events.TaskExecAdded{ContainerID: t.id, ExecID: r.ExecID})
	return &emptypb.Empty{}, nil
}

// Kill sends a signal to a process, or to all of the container.
func (s *Service) Kill(ctx context.Context, r *task.KillRequest) (*emptypb.Empty, error) {
	t, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	sig, err := signal(r.Signal)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	at := p.phase
	if r.ExecID != "" && at == phaseRunning {
		// Under the lock: the pidfd is closed when the exit is reported.
		err = p.proc.Signal(sig)
	}
	p.mu.Unlock()
	switch {
	case at == phaseStopped && (!r.All || r.ExecID != ""):
		return nil, notFound("process already finished")
	case r.ExecID != "" && at != phaseRunning:
		return nil, failedPrecondition("cannot signal exec %q of container %q: %s", r.ExecID, t.id, at)
	case r.ExecID == "":
		err = t.c.Kill(ctx, sig, r.All)
	}
	if errors.Is(err, container.ErrNotRunning) {
		// What clients take as done. Source: containerd-shim-runc-v2.
		return nil, notFound("process already finished")
	}
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}
