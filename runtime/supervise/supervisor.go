package supervise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// Grace is how long a task may take to end between SIGTERM and SIGKILL.
const Grace = 2 * time.Second

// cpuPoll bounds how much later than due a limit of CPU time is noticed.
const cpuPoll = 500 * time.Millisecond

// Limits are what the supervisor enforces; 0 is no limit.
type Limits struct {
	WallClock, CPUTime time.Duration
	// Profile names where they come from; wallClockRule is what set that limit.
	Profile       string
	wallClockRule string
}

// LimitsOf returns the limits of a profile.
func LimitsOf(p *profiles.Profile) Limits {
	if p.Unrestricted {
		return Limits{Profile: p.Name}
	}
	return Limits{WallClock: p.Limits.WallClock, CPUTime: p.Limits.CPUTime, Profile: p.Name}
}

// Options configure a Supervisor.
type Options struct {
	// WallClock is a limit of the caller's beside the profile's, 0 for none; WallClockRule names it in messages.
	WallClock     time.Duration
	WallClockRule string
	// Stderr is the standard error of the first process, unless that is a terminal: it gets a line when a limit ends the
	// container. It stays the caller's; nil for none.
	Stderr *os.File
	// EvidenceDir and KeyDir are where logs go and the key lies, "" for the host's.
	EvidenceDir, KeyDir string
	// Version is that of the program, for the evidence.
	Version string
	// Ended is called once when a limit ends the container, before its processes are signalled; nil warns.
	Ended func(e container.End)
	// Warn gets what is worth a log line; nil discards it.
	Warn func(message string)
}

// Supervisor is in charge of one container. It implements container.Supervisor and is safe for concurrent use.
type Supervisor struct {
	c      *container.Container
	o      Options
	limits Limits
	init   *os.File // pidfd
	socket *net.UnixListener
	ctx    context.Context //nolint:containedctx // the life of the supervisor, which its goroutines share
	stop   context.CancelFunc
	group  sync.WaitGroup
	// closed is closed when Close has finished.
	closed chan struct{}
	once   sync.Once
	// ending is endAll, if a limit has been met; settled is settle.
	ending  sync.WaitGroup
	settled sync.Once
	// finished is closeEvidence.
	finished sync.Once

	mu     sync.Mutex
	begun  bool
	closes bool
	end    *container.End
	stderr *os.File // ours, until the first process has ended
	said   bool
	execs  map[int]*running // by pid
	onExec []OnExec
	parent parentReport // of the first process
	timers []*time.Timer

	streams *streams // of the first process; nil if they are not counted
	// counts has the limits that were met and have counters; notes are lines about those that the task sees as errors
	// that name no limit.
	counts  container.End
	notes   []string
	bounded []*bounded // workspaces whose layers have a limit

	layerMu sync.Mutex // of what bounded points to

	evidence  *evidence    // nil without
	usage     *usage       // nil until the container is started, and without evidence or cgroups
	denials   *denialWatch // likewise
	execCount int
	// initDone is closed when everything about the first process's end has been written down.
	initDone chan struct{}
}

// parentReport is an exit status from a process's parent.
type parentReport struct {
	status int
	known  bool
}

// Unknown is the exit status of a process whose end only its parent has seen.
const Unknown = -1

// ExecExit is the end of a process that an engine has started in the container.
type ExecExit struct {
	wire.Exec
	// Status is 128+n for signal n, or Unknown.
	Status         int
	Started, Ended time.Time
	// TimedOut says that the process's own time limit has ended it.
	TimedOut bool
	// Layer is what became of its transaction; nil if it has none. It is there for functions that were registered after
	// New has returned.
	Layer *layer.Transaction
}

// OnExec is told of a process's end. It must not call the Supervisor. What it adds to e, later ones see.
type OnExec func(e *ExecExit)

// New puts a supervisor in charge of a container that has been created and not started. The socket is the listening one
// of container.ListenSupervisor; it stays the caller's. c must stay open until the Supervisor is closed.
func New(c *container.Container, socket *os.File, o Options) (*Supervisor, error) {
	d, err := c.Detail()
	if err != nil {
		return nil, err
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	s := &Supervisor{c: c, o: o, limits: LimitsOf(d.Policy.Profile), execs: map[int]*running{}, closed: make(chan struct{}), initDone: make(chan struct{})}
	s.limits.wallClockRule = fmt.Sprintf("limits.wallClock of profile %q", s.limits.Profile)
	if o.WallClock > 0 && (s.limits.WallClock == 0 || o.WallClock < s.limits.WallClock) {
		s.limits.WallClock, s.limits.wallClockRule = o.WallClock, o.WallClockRule
	}
	if s.init, err = c.PidFD(); err != nil {
		return nil, fmt.Errorf("supervise container %q: %w", c.ID(), err)
	}
	l, err := net.FileListener(socket)
	if err != nil {
		s.init.Close()
		return nil, fmt.Errorf("supervise container %q: %w", c.ID(), err)
	}
	s.socket = l.(*net.UnixListener) //nolint:forcetypeassert // a unix socket it is
	s.socket.SetUnlinkOnClose(false)
	s.keepStderr(o.Stderr)
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := s.plugIn(); err != nil {
		s.shutdown()
		s.closeEvidence()
		s.init.Close()
		return nil, err
	}
	s.group.Go(s.accept)
	s.group.Go(s.watchInit)
	return s, nil
}

// InProcess returns the function for container.CreateOptions.Supervise. made, if not nil, gets the Supervisor.
func InProcess(o Options, made func(s *Supervisor)) func(c *container.Container) (container.Supervisor, error) {
	return func(c *container.Container) (container.Supervisor, error) {
		socket, err := container.ListenSupervisor(c)
		if err != nil {
			return nil, err
		}
		defer socket.Close()
		s, err := New(c, socket, o)
		if err != nil {
			return nil, err
		}
		if made != nil {
			made(s)
		}
		return s, nil
	}
}

// OnExec registers a function for the end of every process that an engine starts. It is to be called before the
// container is started.
func (s *Supervisor) OnExec(f OnExec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onExec = append(s.onExec, f)
}

// Begin implements container.Supervisor: the clocks start.
func (s *Supervisor) Begin() error {
	s.mu.Lock()
	closes, begun := s.closes, s.begun
	s.begun = true
	s.mu.Unlock()
	switch {
	case closes:
		return errClosing
	case begun:
		return nil
	}
	inputs, err := s.digestInputs()
	if err != nil {
		return err
	}
	if s.evidence != nil {
		s.evidence.predicate.Container.Inputs = inputs
	}
	if err := s.record(audit.TypeStart, &startRecord{inputs}); err != nil {
		return err
	}
	s.watchUsage()
	s.watchLayers()
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit := s.limits.WallClock; limit > 0 {
		s.timers = append(s.timers, time.AfterFunc(limit, func() {
			s.expire(container.End{
				Reason:  container.EndWallClock,
				Message: fmt.Sprintf("ran longer than %s (%s)", limit, s.limits.wallClockRule),
			})
		}))
	}
	if s.limits.CPUTime > 0 {
		s.group.Go(s.watchCPU)
	}
	if s.c.State().Network == netns.ModeGateway {
		s.group.Go(s.keepGateway)
		s.watchNetwork()
	}
	return nil
}

var errClosing = errors.New("the container is being deleted")

// watchCPU ends the container when its processes have used up their time. It looks again when they could have, at the
// earliest.
func (s *Supervisor) watchCPU() {
	limit := s.limits.CPUTime
	for {
		used, err := s.c.CPUTime()
		if err != nil {
			if s.ctx.Err() == nil {
				s.expire(container.End{Reason: container.EndSupervisor, Message: "its CPU time can't be read: " + err.Error()})
			}
			return
		}
		if used >= limit {
			s.expire(container.End{
				Reason:  container.EndCPUTime,
				Message: fmt.Sprintf("used more than %s of CPU time (limits.cpuTime of profile %q)", limit, s.limits.Profile),
			})
			return
		}
		wait := max((limit-used)/time.Duration(runtime.NumCPU()), 20*time.Millisecond)
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(min(wait, cpuPoll)):
		}
	}
}

// expire ends the container for a reason, once; a later reason is ignored.
func (s *Supervisor) expire(e container.End) {
	s.mu.Lock()
	first := s.end == nil && !s.closes
	var err error
	if first {
		e.At = time.Now().UTC()
		s.countInto(&e)
		s.end = &e
		s.ending.Add(1) // under the lock: finish waits once it has said that it closes
		err = s.c.WriteEnd(&e)
	}
	s.mu.Unlock()
	if !first {
		return
	}
	if err != nil {
		s.o.Warn(err.Error())
	}
	s.record(audit.TypeLimit, e) //nolint:errcheck // it ends in any case
	s.denials.limitMet(&e)
	if s.o.Ended != nil {
		s.o.Ended(e)
	} else {
		s.o.Warn(fmt.Sprintf("container %q %s: ended", s.c.ID(), e.Message))
	}
	// A goroutine of its own: the timer's must not wait, and Close waits for this one.
	s.group.Go(func() {
		defer s.ending.Done()
		s.endAll(e.Message)
	})
}

// endAll ends every process of the container: those that ask for it may clean up first.
func (s *Supervisor) endAll(message string) {
	defer s.hangUp()
	s.say(message, false)
	defer s.say(message, true)
	if err := s.c.Kill(s.ctx, unix.SIGTERM, true); err != nil && !errors.Is(err, container.ErrNotRunning) {
		s.o.Warn(fmt.Sprintf("end container %q: %v", s.c.ID(), err))
	}
	waitExit(s.ctx, s.init, s.c.State().InitPID, Grace)
	for {
		// What the first process leaves behind, or all. Not bounded by the supervisor's life: this is the limit itself.
		err := s.c.Kill(context.Background(), unix.SIGKILL, true)
		if err == nil || errors.Is(err, container.ErrNotRunning) {
			return
		}
		s.o.Warn(fmt.Sprintf("end container %q: %v", s.c.ID(), err))
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// End returns why a limit has ended the container; nil if none has.
func (s *Supervisor) End() *container.End {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// watchInit waits for the end of the first process and writes down what limits it has met.
func (s *Supervisor) watchInit() {
	defer close(s.initDone)
	if !waitExit(s.ctx, s.init, s.c.State().InitPID, 0) {
		return
	}
	s.firstStreams().drain(s.ctx)
	s.settled.Do(s.settle)
	s.recordExit(s.initStatus())
}

// initStatus finds out how the first process has ended: from its parent if that is this process, or from the kernel.
func (s *Supervisor) initStatus() int {
	known := func() (int, bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.parent.status, s.parent.known
	}
	if s.c.State().Monitored {
		return exitStatus(s.ctx, s.init)
	}
	for until := time.Now().Add(reportTimeout); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if status, ok := known(); ok {
			return status
		}
		if gone(s.init) && s.ctx.Err() != nil {
			break
		}
	}
	return exitStatus(s.ctx, s.init)
}

// settle writes down what limits the container has met, once its first process has ended.
func (s *Supervisor) settle() {
	s.c.EndTransactions()
	s.denials.drain()
	s.lookOnceMore()
	s.noteCounters()
	e := s.End()
	s.denials.limitMet(e)
	s.recordCounters(e)
	switch {
	case e == nil:
		s.hangUp()
	case e.Reason == "":
		s.sayNotes()
		s.hangUp()
	case e.Reason == container.EndOOM:
		s.say(e.Message, true)
		s.sayNotes()
		s.hangUp()
	} // of every other reason, endAll speaks
}

// Close implements container.Supervisor. It returns when every function of OnExec has been called.
func (s *Supervisor) Close(ctx context.Context) error {
	err := s.finish(ctx)
	s.shutdown()
	return err
}

// finish sees to it that everything has been told; the processes of the container have ended by now.
func (s *Supervisor) finish(ctx context.Context) error {
	s.mu.Lock()
	s.closes = true
	timers := s.timers
	s.timers = nil
	var left []*running
	for _, r := range s.execs {
		left = append(left, r)
	}
	s.mu.Unlock()
	for _, t := range timers {
		t.Stop()
	}
	for _, r := range left {
		select {
		case <-r.done:
		case <-ctx.Done():
			return fmt.Errorf("close supervisor: %w", context.Cause(ctx))
		}
	}
	s.ending.Wait()
	s.settled.Do(s.settle)
	s.c.EndTransactions() // of the execs that have ended meanwhile
	select {
	case <-s.initDone:
	case <-ctx.Done():
	}
	s.finished.Do(s.closeEvidence)
	return nil
}

// shutdown ends the supervisor's goroutines and closes its files.
func (s *Supervisor) shutdown() {
	s.once.Do(func() {
		s.stop()
		s.denials.stop()
		s.socket.Close()
		s.hangUp()
		close(s.closed)
	})
}

// Wait waits until the Supervisor is closed and its goroutines have ended.
func (s *Supervisor) Wait() {
	<-s.closed
	s.group.Wait()
	s.init.Close()
}
