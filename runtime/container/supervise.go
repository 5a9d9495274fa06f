package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// Supervisor owns a container while it lives: its limits, its helpers, its evidence. Package supervise is the one in
// this process; without that, the monitor program is spoken to over its socket.
type Supervisor interface {
	// Begin is called right before the container's program is executed. An error keeps it from being executed.
	Begin() error
	// Exec is called when a process has joined. pidfd stays the caller's. After an error the process is killed.
	Exec(e *wire.Exec, pidfd *os.File) error
	// Transact begins a transaction for an exec that is about to be started, and returns its number and the mount namespace
	// to join, which the caller owns. It is noted by Exec whose it is; Abandon takes it back if there comes nothing of it.
	Transact(r *wire.Transact) (n int, ns *os.File, err error)
	Abandon(n int) error
	// Exited is called by the parent of a process (an exec, or the first one) that has ended, before anybody else
	// learns of it. status is 128+n for signal n. timedOut says that the process's own time limit has ended it.
	Exited(pid, status int) (timedOut bool)
	// Pump moves the streams of a process (0 is the first one) to where its engine wants them, within the profile's
	// limit. The files are the caller's.
	Pump(pid int, outs []Output) error
	// Refusals returns what the container has been refused since the mark of an earlier call; since 0, only a mark. With a
	// branch (Process.Branch) what is known to be another command's is left out.
	Refusals(since uint64, branch string) (*wire.Refusals, error)
	// Close is called when every process of the container has ended and its state is about to go.
	Close(ctx context.Context) error
}

// End is why a container was ended by a limit, and what it met on the way.
type End struct {
	// Reason is the limit: see the constants. Empty if the container ended by itself.
	Reason EndReason `json:"reason,omitempty"`
	// Message is for people: which limit of which profile.
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at,omitzero"`
	// OOMKills counts processes that the kernel has killed for want of memory; PIDsRefused the forks that the limit of
	// processes refused.
	OOMKills    uint64 `json:"oomKills,omitempty"`
	PIDsRefused uint64 `json:"pidsRefused,omitempty"`
	// OutputsCut counts the streams that were ended because a process wrote more than it may.
	OutputsCut uint64 `json:"outputsCut,omitempty"`
	// LayersFull counts how often the layers of a workspace became full, EgressCut the limits of bytes that the gateway
	// has met.
	LayersFull uint64 `json:"layersFull,omitempty"`
	EgressCut  uint64 `json:"egressCut,omitempty"`
}

// EndReason names a limit.
type EndReason string

// The reasons.
const (
	EndWallClock  EndReason = "wall-clock"
	EndCPUTime    EndReason = "cpu-time"
	EndOOM        EndReason = "oom"
	EndOutput     EndReason = "output"
	EndPIDs       EndReason = "pids"       // in evidence only, like the next two: it refuses processes and ends nothing
	EndLayers     EndReason = "layers"     // what layers may hold
	EndEgress     EndReason = "egress"     // what the gateway relays
	EndEvidence   EndReason = "evidence"   // it could not be written, and the profile says stop
	EndSupervisor EndReason = "supervisor" // a helper without which the container must not go on
)

const endFile = "end.json"

// WriteEnd keeps why the container was ended, until it is deleted.
func (c *Container) WriteEnd(e *End) error { return replaceJSON(c.dir, endFile, e) }

// End returns why a limit has ended the container, or what limits it has met; nil if none.
func (c *Container) End() (*End, error) {
	var e End
	err := loadJSON(c.dir, endFile, &e)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil //nolint:nilnil // no limit was met
	}
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.id, err)
	}
	return &e, nil
}

// Dir returns the state directory, which stays the Container's.
func (c *Container) Dir() *os.File { return c.dir }

// Detail returns what only some operations need; the caller must not change it.
func (c *Container) Detail() (*Detail, error) { return c.details() }

// PidFD opens the first process; the caller closes it. The error is ErrNotRunning if it is gone; its creator gets one of
// a process that has ended, too.
func (c *Container) PidFD() (*os.File, error) {
	if c.child == nil {
		return c.pidfd()
	}
	fd, err := unix.FcntlInt(c.child.PidFD.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate pidfd of container %q: %w", c.id, err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// PIDsRefused returns how many forks of the container the limit of processes has refused.
func (c *Container) PIDsRefused() (uint64, error) {
	g, err := c.mustGroup()
	if err != nil {
		return 0, err
	}
	return g.PIDsRefused()
}

// PIDsLimit returns how many processes and threads the container may have; 0 without a limit, or if it can't be read.
func (c *Container) PIDsLimit() uint64 {
	stats, err := c.Stats()
	if err != nil {
		return 0
	}
	return stats.Pids.Limit
}

// PIDsPeak returns the most processes and threads that the container had at once; 0 where the kernel does not count.
func (c *Container) PIDsPeak() uint64 {
	g, err := c.mustGroup()
	if err != nil {
		return 0
	}
	return g.PIDsPeak()
}

// CPUTime returns the processor time that the container has used.
func (c *Container) CPUTime() (time.Duration, error) {
	g, err := c.mustGroup()
	if err != nil {
		return 0, err
	}
	return g.CPUTime()
}

// needsSupervisor reports whether a profile has rules that somebody has to enforce while the container lives. It is
// asked for every container, so it looks at fields only.
func needsSupervisor(p *profiles.Profile) bool {
	return !p.Unrestricted && (p.Limits.WallClock > 0 || p.Limits.CPUTime > 0 || p.Exec.WallClock > 0 || transacts(p) ||
		countsOutput(p) || boundsLayers(p) ||
		p.Evidence.Mode == "on" || p.Evidence.Denials != "" || p.Network.Mode == profiles.NetworkGateway)
}

// boundsLayers reports whether somebody has to notice that a workspace's layers are full.
func boundsLayers(p *profiles.Profile) bool {
	w := &p.Filesystem.Workspace
	return w.Mode == profiles.WorkspaceOverlay && (p.Limits.LayerBytes > 0 || p.Limits.LayerInodes > 0 || w.QuotaBytes > 0 || w.MemoryBytes > 0)
}

// execWallClock is the time limit of an exec: the caller's or the profile's, whichever is shorter; 0 is none.
func execWallClock(asked time.Duration, p *profiles.Profile) time.Duration {
	limit := p.Exec.WallClock
	if p.Unrestricted || limit == 0 || (asked > 0 && asked < limit) {
		return asked
	}
	return limit
}

// supervised reports whether somebody will be in charge of the container while it lives.
func (cr *creation) supervised(p *profiles.Profile) bool {
	return needsSupervisor(p) || cr.o.SuperviseAlways && cr.o.Supervise != nil
}

// summon decides who will supervise the container, and starts the monitor program beside the rest of create.
func (cr *creation) summon(context.Context) error {
	p := cr.policy.Profile
	if !cr.supervised(p) {
		return nil
	}
	state := cr.c.state
	state.SupervisorPID = os.Getpid()
	if cr.o.Supervise == nil {
		var err error
		if cr.monitor, err = cr.rt.startMonitor(); err != nil {
			return fmt.Errorf("profile %q has limits that a monitor enforces, and it does not start: %w", p.Name, err)
		}
		cr.undo.push(cr.monitor.stop)
		state.SupervisorPID, state.Monitored = cr.monitor.pid(), true
	}
	var err error
	if state.SupervisorStart, _, err = startTime(state.SupervisorPID); err != nil {
		return fmt.Errorf("supervise container: %w", err)
	}
	return nil
}

// holdForInputs has an attached child wait until it is set up: its supervisor reads what it was given in its own root file
// system.
func (cr *creation) holdForInputs() {
	if cr.o.Attached && cr.spec.Annotations[profiles.AnnotationPrefix+profiles.KeyInputs] != "" {
		held := *cr.o
		held.Held, cr.o = true, &held
	}
}

// supervise puts the supervisor in charge, before the container's own program can run.
func (cr *creation) supervise(context.Context) error {
	c := cr.c
	if c.state.SupervisorPID == 0 {
		return nil
	}
	if err := writeDetail(c.dir, c.detail); err != nil {
		return err
	}
	if cr.monitor != nil {
		if err := cr.monitor.launch(cr); err != nil {
			// It finds no process if init has failed meanwhile: why, is what init has reported.
			return cr.explain(err)
		}
		return cr.pumpInit()
	}
	s, err := cr.o.Supervise(c)
	if err != nil {
		return fmt.Errorf("supervise container: %w", err)
	}
	c.supervisor = s
	cr.undo.push(func() { s.Close(context.Background()) })
	return cr.pumpInit()
}

// Supervisor returns who owns the container while it lives, nil if nobody needs to. The error says that the one in
// charge is gone: what it enforced is not enforced any more.
func (c *Container) Supervisor() (Supervisor, error) {
	if c.supervisor != nil || c.state == nil || c.state.SupervisorPID == 0 {
		return c.supervisor, nil
	}
	m, err := c.dialMonitor()
	if err != nil {
		return nil, fmt.Errorf("the supervisor of container %q (process %d) is gone, so its limits don't hold any more: %w", c.id, c.state.SupervisorPID, err)
	}
	c.supervisor = m
	return m, nil
}

// begin tells the supervisor that the program is about to run.
func (c *Container) begin() error {
	s, err := c.Supervisor()
	if err != nil || s == nil {
		return err
	}
	return s.Begin()
}

// closeSupervisor lets the supervisor finish. Its failure must not keep what a container holds from being removed.
func (c *Container) closeSupervisor(ctx context.Context) {
	if c.state.SupervisorPID == 0 {
		return
	}
	s, err := c.Supervisor()
	if err == nil {
		err = s.Close(ctx)
	}
	if err != nil {
		c.rt.opts.Warn(err.Error())
		c.killMonitor()
	}
}

// execBranch makes the sub-cgroup of a process whose descendants have to be found at its end; nil if they need not.
func (c *Container) execBranch(o *ExecOptions, d *Detail) (*cgroup.Branch, error) {
	o.WallClock = execWallClock(o.WallClock, d.Policy.Profile)
	needed := o.WallClock > 0 || o.Branch
	if !needed && !c.tellsExecs(o) {
		return nil, nil //nolint:nilnil // no need
	}
	if o.WallClock > 0 && c.state.SupervisorPID == 0 {
		return nil, errors.New("a time limit of an exec needs a container that is supervised")
	}
	g, err := c.cgroupGroup()
	if err != nil {
		return nil, err
	}
	if !needed && (g == nil || cgroupID(g.UnifiedDir()) == 0) {
		return nil, nil //nolint:nilnil // it would tell nothing
	}
	if g == nil {
		return nil, fmt.Errorf("a time limit of an exec: %w", errNoCgroup())
	}
	return g.NewBranch("exec-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.Itoa(os.Getpid()))
}

// Kill ends the process with all its descendants if it has a sub-cgroup of its own (a time limit, or ExecOptions.Branch);
// without one, the process alone.
func (p *Process) Kill(ctx context.Context) error {
	if p.cgroup != nil {
		return p.cgroup.Kill(ctx)
	}
	return p.Signal(unix.SIGKILL)
}

// SignalAll sends a signal to the process and its descendants if it has a sub-cgroup of its own; without one, to the
// process alone.
func (p *Process) SignalAll(sig unix.Signal) error {
	if p.cgroup != nil {
		return p.cgroup.Signal(sig)
	}
	return p.Signal(sig)
}

// superviseExec reports a process that has joined.
func (c *Container) superviseExec(p *Process, o *ExecOptions, outs []Output) error {
	s, err := c.Supervisor()
	if err != nil || s == nil {
		return err
	}
	e := &wire.Exec{
		ID: o.ID, PID: p.PID(), Args: wire.Shorten(o.Process.Args), EnvNames: wire.Shorten(envNames(o.Process.Env)),
		Cwd: o.Process.Cwd, UID: o.Process.User.UID, GID: o.Process.User.GID, Terminal: o.Process.Terminal,
		WallClock: o.WallClock, ParentReports: !o.Detached,
	}
	if p.of != nil {
		e.Transaction, e.TransactionN = transactionAuto, p.transaction
	}
	if p.cgroup != nil {
		e.Cgroup = p.cgroup.Dir()
	}
	if err := s.Exec(e, p.PidFD()); err != nil {
		return err
	}
	if len(outs) > 0 {
		if err := s.Pump(e.PID, outs); err != nil {
			return err
		}
	}
	p.exited = s.Exited
	return nil
}

// envNames returns the names of an environment; the values are nobody's business.
func envNames(env []string) []string {
	out := make([]string, len(env))
	for i, e := range env {
		for j := range len(e) {
			if e[j] == '=' {
				e = e[:j]
				break
			}
		}
		out[i] = e
	}
	return out
}
