package shim

import (
	"context"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agentsafe/agentsafe/shim/metrics"
)

// State tells what a process is doing.
func (s *Service) State(_ context.Context, r *task.StateRequest) (*task.StateResponse, error) {
	t, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	paused := t.paused
	t.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	out := &task.StateResponse{
		ID: p.id(), ExecID: p.execID, Bundle: t.bundle, Pid: uint32(p.pid), //nolint:gosec // pids fit
		Stdin: p.at.Stdin, Stdout: p.at.Stdout, Stderr: p.at.Stderr, Terminal: p.at.Terminal,
	}
	switch p.phase {
	case phaseCreated, phaseStarting:
		out.Status = tasktypes.Status_CREATED
	case phaseRunning:
		out.Status = tasktypes.Status_RUNNING
		if paused {
			out.Status = tasktypes.Status_PAUSED
		}
	case phaseStopped, phaseDeleted:
		out.Status = tasktypes.Status_STOPPED
		out.ExitStatus, out.ExitedAt = uint32(p.status), p.exited() //nolint:gosec // statuses fit
	}
	return out, nil
}

// exited is the time of the exit; nil if there was none.
func (p *process) exited() *timestamppb.Timestamp {
	if p.exitedAt.IsZero() {
		return nil
	}
	return timestamppb.New(p.exitedAt)
}

// Wait returns when a process has ended and its exit is on its way as an event.
func (s *Service) Wait(ctx context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	_, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &task.WaitResponse{ExitStatus: uint32(p.status), ExitedAt: p.exited()}, nil //nolint:gosec // statuses fit
}

// Pids lists the processes of the container; those that were exec'd have their id. A container that has ended is answered
// with the pid that its first process had: a containerd that comes back takes a shim without processes for one whose task
// was never made, and removes it together with the exit status (core/runtime/v2/shim_load.go, shouldCleanupShim).
func (s *Service) Pids(_ context.Context, r *task.PidsRequest) (*task.PidsResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	pids, err := t.c.PIDs()
	if err != nil {
		return nil, err
	}
	execs := t.execPIDs()
	out := &task.PidsResponse{}
	for _, pid := range pids {
		info := &tasktypes.ProcessInfo{Pid: uint32(pid)} //nolint:gosec // pids fit
		if id, ok := execs[pid]; ok {
			if info.Info, err = bareAny(&runcoptions.ProcessDetails{ExecID: id}); err != nil {
				return nil, err
			}
		}
		out.Processes = append(out.Processes, info)
	}
	// Also while the end of the first process is on its way to us: then none is left, and nothing has been reported.
	if len(out.Processes) == 0 {
		out.Processes = []*tasktypes.ProcessInfo{{Pid: t.init.pid32()}}
	}
	return out, nil
}

func (t *Task) execPIDs() map[int]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[int]string, len(t.execs))
	for id, p := range t.execs {
		p.mu.Lock()
		if p.phase == phaseRunning {
			out[p.pid] = id
		}
		p.mu.Unlock()
	}
	return out
}

// bareAny wraps a message under its bare name, as containerd's own code does.
func bareAny(m proto.Message) (*anypb.Any, error) {
	value, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: string(m.ProtoReflect().Descriptor().FullName()), Value: value}, nil
}

// Stats measures the container, in the form that belongs to the host's version of cgroups.
func (s *Service) Stats(_ context.Context, r *task.StatsRequest) (*task.StatsResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	t.verbs.RLock()
	defer t.verbs.RUnlock()
	stats, err := t.c.Stats()
	if err != nil {
		return nil, err
	}
	var m proto.Message
	if t.c.State().Cgroup.Unified {
		m = metrics.V2(stats)
	} else {
		m = metrics.V1(stats)
	}
	out, err := bareAny(m)
	if err != nil {
		return nil, err
	}
	return &task.StatsResponse{Stats: out}, nil
}
