package shim

import (
	"context"

	events "github.com/containerd/containerd/api/events"
	task "github.com/containerd/containerd/api/runtime/task/v2"

	"github.com/agentsafe/agentsafe/runtime/container"
)

// Start lets the first process execute its program, or starts an exec.
func (s *Service) Start(ctx context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	t, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	if r.ExecID == "" {
		err = t.start(ctx, p)
	} else {
		err = t.startExec(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	return &task.StartResponse{Pid: p.pid32()}, nil
}

func (t *Task) start(ctx context.Context, p *process) error {
	t.verbs.Lock()
	defer t.verbs.Unlock()
	p.starting.Lock()
	defer p.starting.Unlock()
	p.mu.Lock()
	at, pid := p.phase, p.pid
	p.mu.Unlock()
	if at != phaseCreated {
		return failedPrecondition("cannot start container %q: %s", t.id, at)
	}
	begin := func() error { return t.c.Start(ctx) }
	if t.restored {
		begin = t.c.Resume
	}
	if err := begin(); err != nil {
		return err
	}
	p.mu.Lock()
	p.phase = phaseRunning
	p.mu.Unlock()
	t.publish(topicStart, &events.TaskStart{ContainerID: t.id, Pid: uint32(pid)}) //nolint:gosec // pids fit
	return nil
}

// startExec starts a further process. It shares the lock with other execs.
func (t *Task) startExec(ctx context.Context, p *process) error {
	t.verbs.RLock()
	defer t.verbs.RUnlock()
	p.mu.Lock()
	at := p.phase
	if at == phaseCreated {
		p.phase = phaseStarting
	}
	p.mu.Unlock()
	if at != phaseCreated {
		return failedPrecondition("cannot start exec %q of container %q: %s", p.execID, t.id, at)
	}
	err := t.spawnExec(ctx, p)
	if err != nil {
		// Whoever waits for it already must not wait for ever.
		p.mu.Lock()
		const neverRan = 255
		p.phase, p.status = phaseStopped, neverRan
		p.mu.Unlock()
		close(p.done)
	}
	return err
}

func (t *Task) spawnExec(ctx context.Context, p *process) error {
	if !t.admitExec() {
		return failedPrecondition("cannot exec in container %q: its first process has ended", t.id)
	}
	streams, err := t.openStreams(p.at, p.spec)
	if err != nil {
		t.running.Done()
		return err
	}
	o := &container.ExecOptions{Process: p.spec, ID: p.execID}
	o.Stdin, o.Stdout, o.Stderr, o.ConsoleSocket = streams.Child()
	t.service.execs <- struct{}{}
	proc, err := t.c.Exec(ctx, o)
	<-t.service.execs
	if err != nil {
		streams.Close()
		t.running.Done()
		return err
	}
	// A terminal that did not arrive is no reason to forget a process that runs.
	if err := streams.Started(); err != nil {
		t.service.cfg.Log.Error(t.id, "exec "+p.execID+": "+err.Error())
	}
	p.mu.Lock()
	p.phase, p.proc, p.pid, p.streams, p.spec = phaseRunning, proc, proc.PID(), streams, nil
	closed := p.stdinClosed
	p.mu.Unlock()
	if closed {
		streams.CloseStdin()
	}
	t.publish(topicExecStarted, &events.TaskExecStarted{ContainerID: t.id, ExecID: p.execID, Pid: uint32(proc.PID())}) //nolint:gosec // pids fit
	go p.watch(proc)
	return nil
}

func (p phase) String() string {
	return [...]string{"it has been created", "it is being started", "it runs already", "it has stopped", "it is deleted"}[p]
}
