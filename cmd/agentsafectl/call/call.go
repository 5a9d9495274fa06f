package call

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/supervise"
)

// Request is a command to run.
type Request struct {
	// ID names the process in the evidence.
	ID string
	// Process is what to run, without a terminal.
	Process *specs.Process
	Stdin   string
	// Timeout ends the command with its descendants, 0 for never; the profile's limit holds too.
	Timeout time.Duration
	// MaxOutput bounds what is kept of each stream, in bytes.
	MaxOutput int
	// Since is the mark of the call before in the same container, 0 for none: what the kernel reports late of one command
	// is told with the next.
	Since uint64
}

// Result is what a command did.
type Result struct {
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	ExitCode        int    `json:"exit_code"` // 128+n for signal n
	DurationMillis  int64  `json:"duration_ms"`
	TimedOut        bool   `json:"timed_out"`
	StdoutTruncated int64  `json:"stdout_truncated_bytes,omitempty"`
	StderrTruncated int64  `json:"stderr_truncated_bytes,omitempty"`
	// Transaction is the number of the layer that holds what the command changed, 0 without one; its status says whether
	// that is part of the workspace.
	Transaction int          `json:"transaction,omitempty"`
	Status      layer.Status `json:"transaction_status,omitempty"`
	// FilesChanged are the first of the changed paths, FilesOmitted how many more there are.
	FilesChanged []FileChange `json:"files_changed,omitempty"`
	FilesOmitted int          `json:"files_omitted,omitempty"`
	// Conflicts are paths that others have changed at the same time: the transaction is kept apart.
	Conflicts []FileConflict `json:"conflicts,omitempty"`
	Denials   []Denial       `json:"denials,omitempty"`
	// Next is the mark for the next call's Since.
	Next uint64 `json:"-"`
}

// CommandError marks what is wrong with the command and not with the sandbox: no such program, no such directory.
type CommandError struct{ Err error }

// Error implements error.
func (e *CommandError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *CommandError) Unwrap() error { return e.Err }

// isCommand tells errors of execve(2) and chdir(2) from everything else.
func isCommand(err error) bool {
	for _, e := range [...]unix.Errno{
		unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ENOEXEC, unix.EISDIR, unix.ELOOP, unix.ETXTBSY, unix.E2BIG, unix.EPERM,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Run runs a command to its end. The end of ctx ends it with all its descendants. uid and gid are the process's ids on
// the host, which get its pipes. finished, if not nil, is asked for the transaction of a process that has ended; without
// it the layers are searched.
func Run(ctx context.Context, c *container.Container, r *Request, uid, gid uint32, finished func(pid int) *layer.Transaction) (*Result, error) {
	limit, err := timeLimit(c, r.Timeout)
	if err != nil {
		return nil, err
	}
	std, err := newStdio(r, uid, gid)
	if err != nil {
		return nil, err
	}
	defer std.close()
	before := measure(c, r.Since)
	began := time.Now()
	o := &container.ExecOptions{ID: r.ID, Process: r.Process, Branch: true, Stdin: std.in, Stdout: std.out, Stderr: std.err}
	own := limit
	if limit > 0 && c.State().SupervisorPID != 0 {
		// Holds also if this process is killed, and the evidence tells it. Ours is there in case the supervisor is not.
		o.WallClock, own = limit, limit+2*supervise.Grace
	}
	p, err := c.Exec(ctx, o)
	if err != nil {
		if isCommand(err) {
			err = &CommandError{err}
		}
		return nil, err
	}
	defer p.Close()
	end := watch(ctx, p, own-time.Since(began), limit > 0)
	std.started()
	status, err := p.Wait()
	timedOut := end() || p.TimedOut()
	if err != nil {
		return nil, err
	}
	std.drain()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	out := &Result{
		Stdout: Visible(std.kept[0].text()), Stderr: Visible(std.kept[1].text()), ExitCode: status, TimedOut: timedOut,
		DurationMillis: time.Since(began).Milliseconds(), StdoutTruncated: std.kept[0].dropped, StderrTruncated: std.kept[1].dropped,
	}
	out.Denials, out.Next = before.denials(c, p.Branch())
	return out, out.addChanges(c, p.PID(), finished)
}

// timeLimit is the shorter one of what is asked and what the profile says; 0 is none.
func timeLimit(c *container.Container, asked time.Duration) (time.Duration, error) {
	d, err := c.Detail()
	if err != nil {
		return 0, err
	}
	if most := d.Policy.Profile.Exec.WallClock; most > 0 && (asked == 0 || most < asked) {
		return most, nil
	}
	return asked, nil
}

// watch ends a process when its time is up, or ctx ends. The function that it returns stops that, and says whether the
// time was up.
func watch(ctx context.Context, p *container.Process, left time.Duration, limited bool) func() bool {
	stop := context.AfterFunc(ctx, func() { p.Kill(context.WithoutCancel(ctx)) }) //nolint:errcheck // it may have ended
	if !limited {
		return func() bool { stop(); return false }
	}
	var up atomic.Bool
	ended := make(chan struct{})
	timer := time.AfterFunc(max(left, 1), func() {
		up.Store(true)
		p.SignalAll(unix.SIGTERM) //nolint:errcheck // it may have ended
		select {
		case <-ended:
		case <-time.After(supervise.Grace):
			p.Kill(context.Background()) //nolint:errcheck // likewise
		}
	})
	return func() bool {
		stop()
		timer.Stop()
		close(ended)
		return up.Load()
	}
}

// NewProcess is a process like the container's first one that runs args in cwd ("" for the first one's).
func NewProcess(c *container.Container, args []string, cwd string) (*specs.Process, error) {
	base, err := c.Process()
	if err != nil {
		return nil, fmt.Errorf("read process of container %q: %w", c.ID(), err)
	}
	process := *base
	process.Args, process.Terminal, process.ConsoleSize = args, false, nil
	if cwd != "" {
		process.Cwd = cwd
	}
	return &process, nil
}

// OwnedPipe makes a pipe that belongs to a user, so that its ends can be opened again by name. The caller closes both.
func OwnedPipe(uid, gid uint32) (r, w *os.File, err error) {
	if r, w, err = os.Pipe(); err != nil {
		return nil, nil, fmt.Errorf("create pipe: %w", err)
	}
	if err := r.Chown(int(uid), int(gid)); err != nil { // one inode: both ends
		r.Close()
		w.Close()
		return nil, nil, fmt.Errorf("own pipe: %w", err)
	}
	return r, w, nil
}
