package shim

import (
	"context"

	events "github.com/containerd/containerd/api/events"
	task "github.com/containerd/containerd/api/runtime/task/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/shim/snapshot"
)

// Delete forgets an exec that does not run, or removes a container that does not run with everything it holds.
func (s *Service) Delete(ctx context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	t, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	if r.ExecID != "" {
		return t.deleteExec(ctx, p)
	}
	out, err := t.delete(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	delete(s.tasks, r.ID)
	last := s.sandboxGone
	s.mu.Unlock()
	if last {
		s.EndIfIdle()
	}
	return out, nil
}

func (t *Task) deleteExec(ctx context.Context, p *process) (*task.DeleteResponse, error) {
	p.mu.Lock()
	at, streams := p.phase, p.streams
	if at == phaseCreated {
		p.phase = phaseDeleted
		close(p.done)
	}
	p.mu.Unlock()
	if at == phaseStarting || at == phaseRunning {
		return nil, failedPrecondition("cannot delete exec %q of container %q: %s", p.execID, t.id, at)
	}
	if streams != nil {
		streams.Drain(ctx)
		streams.Close()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.execs[p.execID] == p {
		delete(t.execs, p.execID)
	}
	return p.deleted(), nil
}

// delete removes the container. If it fails it can be called again.
func (t *Task) delete(ctx context.Context) (*task.DeleteResponse, error) {
	t.verbs.Lock()
	defer t.verbs.Unlock()
	p := t.init
	p.mu.Lock()
	at := p.phase
	if at == phaseCreated {
		// It waits for a start that will not come.
		p.proc.Signal(unix.SIGKILL) //nolint:errcheck // it may have ended meanwhile
		if t.restored {
			t.c.Resume() //nolint:errcheck // likewise; frozen it would not end
		}
	}
	p.mu.Unlock()
	switch at {
	case phaseRunning:
		return nil, failedPrecondition("cannot delete container %q: %s", t.id, at)
	case phaseDeleted:
		return nil, notFound("container %q is not in this shim", t.id)
	default: // it ends, or has ended
	}
	<-p.done
	p.streams.Drain(ctx)
	if err := t.rt.Delete(ctx, t.id, true); err != nil {
		return nil, err
	}
	if t.rootfs != "" {
		if err := snapshot.Deactivate(t.rootfs); err != nil {
			return nil, err
		}
	}
	t.release()
	out := p.deleted()
	t.publish(topicDelete, &events.TaskDelete{
		ContainerID: t.id, Pid: out.Pid, ExitStatus: out.ExitStatus, ExitedAt: out.ExitedAt,
	})
	return out, nil
}

// release gives back what the task holds in this process.
func (t *Task) release() {
	t.init.streams.Close()
	t.mu.Lock()
	for _, p := range t.execs {
		p.mu.Lock()
		if p.streams != nil {
			p.streams.Close()
		}
		p.mu.Unlock()
	}
	t.mu.Unlock()
	t.init.mu.Lock()
	t.init.phase = phaseDeleted
	t.init.mu.Unlock()
	t.c.Close()
}

func (p *process) deleted() *task.DeleteResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.exited()
	if at == nil {
		at = timestamppb.Now()
	}
	return &task.DeleteResponse{Pid: uint32(p.pid), ExitStatus: uint32(p.status), ExitedAt: at} //nolint:gosec // they fit
}
