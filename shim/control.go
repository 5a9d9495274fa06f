package shim

import (
	"context"
	"errors"

	events "github.com/containerd/containerd/api/events"
	task "github.com/containerd/containerd/api/runtime/task/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/shim/stdio"
)

func signal(n uint32) (unix.Signal, error) {
	const last = 64
	if n == 0 || n > last {
		return 0, invalidArgument("%d is not a signal", n)
	}
	return unix.Signal(n), nil
}

// Pause freezes the container.
func (s *Service) Pause(_ context.Context, r *task.PauseRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	t.verbs.Lock()
	defer t.verbs.Unlock()
	if err := t.c.Pause(); err != nil {
		return nil, err
	}
	t.setPaused(true)
	t.publish(topicPaused, &events.TaskPaused{ContainerID: t.id})
	return &emptypb.Empty{}, nil
}

// Resume thaws the container.
func (s *Service) Resume(_ context.Context, r *task.ResumeRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	t.verbs.Lock()
	defer t.verbs.Unlock()
	if err := t.c.Resume(); err != nil {
		return nil, err
	}
	t.setPaused(false)
	t.publish(topicResumed, &events.TaskResumed{ContainerID: t.id})
	return &emptypb.Empty{}, nil
}

func (t *Task) setPaused(paused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paused = paused
}

// resourcesType is how containerd names the JSON of OCI limits.
const resourcesType = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"

// Update changes the container's limits.
func (s *Service) Update(_ context.Context, r *task.UpdateTaskRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	if r.Resources == nil || r.Resources.TypeUrl != resourcesType {
		return nil, invalidArgument("resources are of type %q instead of %q", r.Resources.GetTypeUrl(), resourcesType)
	}
	var limits specs.LinuxResources
	if err := container.DecodeJSON(r.Resources.Value, "resources", &limits); err != nil {
		return nil, invalidArgument("%s", err)
	}
	t.verbs.Lock()
	defer t.verbs.Unlock()
	if err := t.c.Update(&limits); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// ResizePty sets the size of a process's terminal. A process without one, or that has not been started, takes no notice.
func (s *Service) ResizePty(_ context.Context, r *task.ResizePtyRequest) (*emptypb.Empty, error) {
	_, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	const most = 1<<16 - 1
	if r.Width > most || r.Height > most {
		return nil, invalidArgument("%d x %d is larger than a terminal can be", r.Width, r.Height)
	}
	p.mu.Lock()
	at, streams := p.phase, p.streams
	p.mu.Unlock()
	if at == phaseStopped {
		return nil, failedPrecondition("cannot resize: the process has stopped")
	}
	if streams == nil {
		return &emptypb.Empty{}, nil
	}
	if err := streams.Resize(uint16(r.Width), uint16(r.Height)); err != nil && !errors.Is(err, stdio.ErrNoTerminal) {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// CloseIO ends a process's standard input once everything that was sent has been read.
func (s *Service) CloseIO(_ context.Context, r *task.CloseIORequest) (*emptypb.Empty, error) {
	_, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	if !r.Stdin {
		return &emptypb.Empty{}, nil
	}
	p.mu.Lock()
	p.stdinClosed = true
	streams := p.streams
	p.mu.Unlock()
	if streams != nil {
		streams.CloseStdin()
	}
	return &emptypb.Empty{}, nil
}
