package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/supervise"
)

// stopGrace is how long a task may take to end after it was asked to.
const stopGrace = 10 * time.Second

// outcome is how a task ended.
type outcome struct {
	status   int // as a shell gives it
	timedOut bool
	end      *container.End // why a limit has ended it; nil if none has
}

// createOptions are those of the container, without its streams; started gets who supervises it, which is this process.
func (o *operation) createOptions(started func(*supervise.Supervisor)) *container.CreateOptions {
	own := supervise.Options{
		WallClock: o.flags.timeout, WallClockRule: "--timeout", Version: version,
		EvidenceDir: filepath.Join(o.flags.paths.data, evidenceName), Warn: o.note,
		Ended: func(container.End) {}, // the outcome has it
	}
	return &container.CreateOptions{
		ID: o.request.ID, Bundle: o.dir.path, Spec: o.spec(), Attached: true, Record: o.record, Worktree: o.flags.tree,
		Held:            o.created != nil, // set up, and waiting, when created is called
		SuperviseAlways: true, Supervise: supervise.InProcess(own, started), Refused: supervise.RecordRefusal(own),
	}
}

// execute creates and starts the container, sees it to its end and deletes it.
func (o *operation) execute(ctx context.Context, captured *[2]capture) (out outcome, err error) {
	// Before the first process exists: a signal that arrives now must reach it.
	signals := make(chan os.Signal, 64)
	signal.Notify(signals)
	defer signal.Stop(signals)
	var owner *supervise.Supervisor
	create := o.createOptions(func(s *supervise.Supervisor) { owner = s })
	var term *terminal
	var std *stdio
	if o.request.Terminal {
		if term, err = newTerminal(attachedTerminal()); err != nil {
			return outcome{}, err
		}
		defer term.close()
		create.ConsoleSocket = term.childEnd
	} else {
		uid, gid := o.pipeOwner(o.user)
		if std, err = openStdio(uid, gid, captured); err != nil {
			return outcome{}, err
		}
		defer std.close()
		create.Stdin, create.Stdout, create.Stderr = std.in, std.out, std.err
	}
	c, err := o.runtime.Create(ctx, create)
	if err != nil {
		return outcome{}, err
	}
	// Whatever happens: the container goes before what it stands on.
	deleted := false
	remove := func() error {
		if deleted {
			return nil
		}
		deleted = true
		defer c.Close()
		err := o.runtime.Delete(context.WithoutCancel(ctx), o.request.ID, true)
		c.AwaitRecorders()
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if o.created != nil {
		if err := o.created(c); err != nil {
			return outcome{}, err
		}
	}
	if err := c.Start(ctx); err != nil {
		return outcome{}, &startError{err}
	}
	if std != nil {
		std.started()
	}
	if term != nil {
		if err := term.attach(); err != nil {
			return outcome{}, err
		}
	}
	s := supervisor{process: c.Init(), container: c, term: term, signals: signals}
	if out, err = s.wait(ctx); err != nil {
		return outcome{}, err
	}
	// Deleting ends every process that is left, so that the outputs end, too.
	if err := remove(); err != nil {
		return outcome{}, err
	}
	term.drain()
	if std != nil {
		std.drain()
	}
	if out.end = owner.End(); out.end != nil {
		out.timedOut = out.end.Reason == container.EndWallClock || out.end.Reason == container.EndCPUTime
	}
	return out, nil
}

// supervisor watches one process.
type supervisor struct {
	process   *container.Process
	container *container.Container
	term      *terminal
	signals   <-chan os.Signal

	out     outcome
	graceUp <-chan time.Time // set once the task was asked to stop
}

// wait returns when the process has ended.
func (s *supervisor) wait(ctx context.Context) (outcome, error) {
	type exit struct {
		status int
		err    error
	}
	done := make(chan exit, 1)
	go func() {
		status, err := s.process.Wait()
		done <- exit{status, err}
	}()
	for {
		var err error
		select {
		case e := <-done:
			s.out.status = e.status
			return s.out, e.err
		case <-s.graceUp:
			s.graceUp = nil
			err = s.killAll(ctx)
		case got := <-s.signals:
			err = s.signal(ctx, got)
		}
		if err != nil {
			return s.out, err
		}
	}
}

// signal passes a signal on to the task.
func (s *supervisor) signal(ctx context.Context, got os.Signal) error {
	sig, ok := got.(unix.Signal)
	if !ok || s.keep(sig) {
		return nil
	}
	s.process.Signal(sig) //nolint:errcheck // it may have ended meanwhile
	if !asksToStop(sig) {
		return nil
	}
	if s.graceUp != nil { // asked twice
		return s.killAll(ctx)
	}
	// The first process of a PID namespace ignores what it has no handler for:
	// without this, SIGTERM would not end `sleep 100`.
	s.graceUp = time.After(stopGrace)
	return nil
}

// keep says whether a signal is for us and not for the task.
func (s *supervisor) keep(sig unix.Signal) bool {
	if sig == unix.SIGWINCH {
		s.term.resize()
		return true
	}
	return sig == unix.SIGCHLD || sig == unix.SIGPIPE || sig == unix.SIGURG // the Go runtime's own
}

func asksToStop(sig unix.Signal) bool {
	return sig == unix.SIGINT || sig == unix.SIGTERM || sig == unix.SIGHUP || sig == unix.SIGQUIT
}

// killAll ends every process of the container.
func (s *supervisor) killAll(ctx context.Context) error {
	err := s.container.Kill(context.WithoutCancel(ctx), unix.SIGKILL, true)
	if errors.Is(err, container.ErrNotRunning) {
		return nil
	}
	return err
}
