package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/supervise"
)

// warmCommand waits for ever, and leaves no zombies: with SIGCHLD ignored the kernel reaps what is orphaned.
const warmCommand = "trap '' CHLD; exec sleep 2147483647"

// warm is a container that runs commands one after the other, or several at a time.
type warm struct {
	o         *operation
	c         *container.Container
	workspace string // in the container
	calls     atomic.Uint64
	execs     chan struct{} // places for commands that run

	mu       sync.Mutex
	timedOut map[int]bool // by pid, until the call has seen it
}

// maxParallel bounds the commands that run at the same time; others wait.
const maxParallel = 16

// startWarm creates and starts the container. The caller calls stop.
func (o *operation) startWarm(ctx context.Context) (w *warm, err error) {
	w = &warm{o: o, execs: make(chan struct{}, maxParallel), timedOut: map[int]bool{}}
	create := &container.CreateOptions{ID: o.request.ID, Bundle: o.dir.path, Spec: o.spec(), Attached: true, SuperviseAlways: true}
	create.Supervise = supervise.InProcess(supervise.Options{
		WallClock: o.flags.timeout, WallClockRule: "--timeout", Version: version,
		EvidenceDir: filepath.Join(o.flags.paths.data, evidenceName), Warn: o.note,
	}, func(s *supervise.Supervisor) {
		s.OnExec(func(e supervise.ExecExit) {
			if e.TimedOut {
				w.mu.Lock()
				w.timedOut[e.PID] = true
				w.mu.Unlock()
			}
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

// execResult is what a command did.
type execResult struct {
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	ExitCode        int    `json:"exit_code"`
	DurationMillis  int64  `json:"duration_ms"`
	TimedOut        bool   `json:"timed_out"`
	StdoutTruncated int64  `json:"stdout_truncated_bytes,omitempty"`
	StderrTruncated int64  `json:"stderr_truncated_bytes,omitempty"`
}

// errCommand marks what is wrong with the command and not with the sandbox: no such program, no such directory.
type errCommand struct{ err error }

func (e *errCommand) Error() string { return e.err.Error() }
func (e *errCommand) Unwrap() error { return e.err }

// exec runs a command to its end. The end of ctx ends it with all its descendants.
func (w *warm) exec(ctx context.Context, r execRequest) (*execResult, error) {
	select {
	case w.execs <- struct{}{}:
		defer func() { <-w.execs }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	base, err := w.c.Process()
	if err != nil {
		return nil, err
	}
	process := *base
	process.Args, process.Terminal, process.ConsoleSize = r.Args, false, nil
	if r.Cwd != "" {
		process.Cwd = r.Cwd
	}
	io, err := newCallIO(&r, w.o.user.UID, w.o.user.GID)
	if err != nil {
		return nil, err
	}
	defer io.close()
	began := time.Now()
	p, err := w.c.Exec(ctx, &container.ExecOptions{
		ID: "call-" + strconv.FormatUint(w.calls.Add(1), 10), Process: &process, WallClock: r.Timeout,
		Stdin: io.in, Stdout: io.out, Stderr: io.err,
	})
	if err != nil {
		if exitCode(&startError{err}) != exitOwn {
			err = &errCommand{err}
		}
		return nil, err
	}
	defer p.Close()
	stop := context.AfterFunc(ctx, func() { p.Kill(context.Background()) }) //nolint:errcheck // it may have ended
	io.started()
	status, err := p.Wait()
	stop()
	if err != nil {
		return nil, err
	}
	io.drain()
	w.mu.Lock()
	timedOut := w.timedOut[p.PID()]
	delete(w.timedOut, p.PID())
	w.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	return &execResult{
		Stdout: visible(io.kept[0].text()), Stderr: visible(io.kept[1].text()), ExitCode: status, TimedOut: timedOut,
		DurationMillis: time.Since(began).Milliseconds(), StdoutTruncated: io.kept[0].dropped, StderrTruncated: io.kept[1].dropped,
	}, nil
}

// callIO are the streams of one command.
type callIO struct {
	in, out, err *os.File // the command's ends
	ours         []*os.File
	kept         [2]bounded
	stdin        string
	feed         *os.File
	copies       sync.WaitGroup
	mu           sync.Mutex
}

func newCallIO(r *execRequest, uid, gid uint32) (c *callIO, err error) {
	c = &callIO{stdin: r.Stdin}
	c.kept[0].max, c.kept[1].max = r.MaxOutput, r.MaxOutput
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if r.Stdin != "" {
		if c.in, c.feed, err = ownedPipe(uid, gid); err != nil {
			return nil, err
		}
		c.ours = append(c.ours, c.feed)
	}
	for i, end := range []**os.File{&c.out, &c.err} {
		read, write, err := ownedPipe(uid, gid)
		if err != nil {
			return nil, err
		}
		*end = write
		c.ours = append(c.ours, read)
		c.copies.Go(func() {
			io.Copy(&c.kept[i], read) //nolint:errcheck // the end of the stream, or ours
		})
	}
	return c, nil
}

// started closes the command's ends, and feeds its input.
func (c *callIO) started() {
	for _, f := range []**os.File{&c.in, &c.out, &c.err} {
		if *f != nil {
			(*f).Close()
			*f = nil
		}
	}
	if c.feed != nil {
		go func() {
			io.WriteString(c.feed, c.stdin) //nolint:errcheck // a command need not read it
			c.feed.Close()
		}()
	}
}

// lingerTime is how long output of processes that outlive their command is waited for.
const lingerTime = 100 * time.Millisecond

// drain waits for the end of the output. What stays behind in the background may hold the pipes open: its later output
// is not read.
func (c *callIO) drain() {
	done := make(chan struct{})
	go func() {
		c.copies.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(lingerTime):
		c.close()
		<-done
	}
}

func (c *callIO) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range []*os.File{c.in, c.out, c.err} {
		if f != nil {
			f.Close()
		}
	}
	for _, f := range c.ours {
		f.Close()
	}
	c.in, c.out, c.err, c.ours = nil, nil, nil, nil
}

// bounded keeps the first bytes of a stream and counts the rest.
type bounded struct {
	max     int
	kept    strings.Builder
	dropped int64
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.max-b.kept.Len())
	b.kept.Write(p[:n])
	b.dropped += int64(len(p) - n)
	return len(p), nil
}

// text is what was kept, with one line that says what was not.
func (b *bounded) text() string {
	if b.dropped == 0 {
		return b.kept.String()
	}
	return fmt.Sprintf("%s\n[agentsafe: %d bytes more were not kept]\n", b.kept.String(), b.dropped)
}
