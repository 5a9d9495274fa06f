package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/supervise"
)

// warmCommand waits for ever, and leaves no zombies: a shell that waits for one child reaps whatever else is orphaned to
// it (waitpid(2) with -1). Ignoring SIGCHLD would do without the shell, but dash does not keep that across exec.
const warmCommand = "while :; do sleep 2147483647 & wait $!; done"

// warm is a container that runs commands one after the other, or several at a time.
type warm struct {
	o         *operation
	c         *container.Container
	owner     *supervise.Supervisor
	workspace string // in the container
	calls     atomic.Uint64
	execs     chan struct{} // places for commands that run

	mu    sync.Mutex
	ended map[int]supervise.ExecExit // by pid, until the call has seen it
	told  uint64                     // mark of the refusals that a call has told of
}

// maxParallel bounds the commands that run at the same time; others wait.
const maxParallel = 16

// startWarm creates and starts the container. The caller calls stop.
func (o *operation) startWarm(ctx context.Context) (w *warm, err error) {
	w = &warm{o: o, execs: make(chan struct{}, maxParallel), ended: map[int]supervise.ExecExit{}}
	create := &container.CreateOptions{ID: o.request.ID, Bundle: o.dir.path, Spec: o.spec(), Attached: true, SuperviseAlways: true}
	own := supervise.Options{
		WallClock: o.flags.timeout, WallClockRule: "--timeout", Version: version,
		EvidenceDir: filepath.Join(o.flags.paths.data, evidenceName), Warn: o.note,
	}
	create.Refused = supervise.RecordRefusal(own)
	create.Supervise = supervise.InProcess(own, func(s *supervise.Supervisor) {
		w.owner = s
		s.OnExec(func(e *supervise.ExecExit) {
			w.mu.Lock()
			w.ended[e.PID] = *e
			w.mu.Unlock()
		})
	})
	if w.c, err = o.runtime.Create(ctx, create); err != nil {
		return nil, err
	}
	if err := w.c.Start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("the container needs /bin/sh and sleep to wait for commands: %w", err), w.stop())
	}
	p, err := w.c.Process()
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	w.workspace = p.Cwd
	go w.c.Init().Wait() //nolint:errcheck // its end shows in every further command
	return w, nil
}

func (w *warm) stop() error {
	defer w.c.Close()
	return w.o.runtime.Delete(context.Background(), w.o.request.ID, true)
}

// execRequest is a command to run in the container.
type execRequest struct {
	Args    []string
	Cwd     string // absolute, in the container; "" is the workspace
	Stdin   string
	Timeout time.Duration
	// MaxOutput bounds what is kept of each stream.
	MaxOutput int
}

// exec runs a command to its end. The end of ctx ends it with all its descendants.
func (w *warm) exec(ctx context.Context, r execRequest) (*call.Result, error) {
	select {
	case w.execs <- struct{}{}:
		defer func() { <-w.execs }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	process, err := call.NewProcess(w.c, r.Args, r.Cwd)
	if err != nil {
		return nil, err
	}
	uid, gid := w.o.pipeOwner(w.o.user)
	w.mu.Lock()
	told := w.told
	w.mu.Unlock()
	out, err := call.Run(ctx, w.c, &call.Request{
		ID: "call-" + strconv.FormatUint(w.calls.Add(1), 10), Process: process, Stdin: r.Stdin, Timeout: r.Timeout, MaxOutput: r.MaxOutput,
		Since: told,
	}, uid, gid, w.finished)
	if out != nil {
		w.mu.Lock()
		w.told = max(w.told, out.Next)
		w.mu.Unlock()
	}
	return out, err
}

// finished returns the transaction of a process that has ended; its parent has waited for it, so it is known.
func (w *warm) finished(pid int) *layer.Transaction {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.ended[pid]
	delete(w.ended, pid)
	return e.Layer
}
