package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// ExecOptions describe a further process of a container.
type ExecOptions struct {
	// Process is what to run. The container's profile is applied to it.
	Process *specs.Process
	// Stdin, Stdout, Stderr, ConsoleSocket, ExtraFiles and PidFile are as in CreateOptions.
	Stdin, Stdout, Stderr *os.File
	ConsoleSocket         *os.File
	ExtraFiles            []*os.File
	PidFile               string
	// ID names the process in the evidence, "" if the engine has no name for it.
	ID string
	// WallClock ends the process with all its descendants after this time, 0 for none; the profile's limit holds too.
	WallClock time.Duration
	// Branch gives the process a sub-cgroup of its own also without a time limit, so that Kill and SignalAll reach its
	// descendants, and nothing else of the container.
	Branch bool
	// Detached says that nobody will call Wait on the result.
	Detached bool
	// Cgroups are sub-cgroups of the container's by controller, "" standing for all; nil is none.
	Cgroups map[string]string
	// IgnorePaused lets the process wait in a frozen cgroup.
	IgnorePaused bool
	// Discard runs the process on a layer of its own over the workspaces, whatever the profile says of transactions, and
	// throws away what it writes there: a check that leaves what it judges as it is.
	Discard bool
	// program is executed in place of what Args[0] names.
	program string
}

// Process is a process that this program has started and is the parent of.
type Process struct {
	child *initproc.Child
	// cgroup holds this process and its descendants, nil if they are not told from the container's others.
	cgroup *cgroup.Branch
	// entered says that the process goes into its control groups by itself.
	entered bool
	// exited tells the supervisor of the end; nil if there is none.
	exited   func(pid, status int) (timedOut bool)
	timedOut bool // known once Wait has returned
	// of is the container if the process runs on a layer of its own; transaction is that one's number if the supervisor has
	// begun it.
	of          *Container
	transaction int
}

// PID returns the process's number in the caller's pid namespace.
func (p *Process) PID() int { return p.child.PID }

// PidFD returns a pidfd of the process, owned by the Process.
func (p *Process) PidFD() *os.File { return p.child.PidFD }

// Wait waits for the end of the process and returns its exit status, 128+n for a process that was ended by signal n.
// It holds no thread meanwhile.
func (p *Process) Wait() (int, error) {
	if err := p.awaitExit(); err != nil {
		return 0, err
	}
	st, err := p.child.Wait()
	if err != nil {
		return 0, fmt.Errorf("wait for process %d: %w", p.child.PID, err)
	}
	status := exitStatus(st)
	if p.exited != nil {
		p.timedOut = p.exited(p.child.PID, status)
	}
	if p.of != nil && p.exited == nil { // a supervisor has decided on it
		_, later, err := p.of.FinishExec(p.child.PID, &status)
		if err != nil {
			p.of.rt.opts.Warn(fmt.Sprintf("commit transaction in container %q: %v", p.of.id, err))
		}
		if later != nil {
			later()
		}
	}
	return status, nil
}

// awaitExit parks the goroutine in the poller until the process has ended: waitid(2) would keep a thread for as long as
// the process lives, and a shim has many.
func (p *Process) awaitExit() error {
	// A description of its own: with O_NONBLOCK waitid(2) on the child's would not wait any more.
	fd, err := unix.PidfdOpen(p.child.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.child.PID, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch process %d: %w", p.child.PID, err)
	}
	err = conn.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // descriptors fit
		n, err := unix.Poll(poll, 0)
		// There may be no further event to be woken by: where poll fails (ENOMEM) waitid waits.
		return n > 0 || err != nil
	})
	if err != nil {
		return fmt.Errorf("watch process %d: %w", p.child.PID, err)
	}
	return nil
}

func exitStatus(st syscall.WaitStatus) int {
	const signalBase = 128
	if st.Signaled() {
		return signalBase + int(st.Signal())
	}
	return st.ExitStatus()
}

// Branch names the sub-cgroup that holds this process and its descendants alone; "" if there is none.
func (p *Process) Branch() string {
	if p.cgroup == nil {
		return ""
	}
	return filepath.Base(p.cgroup.Dir())
}

// Signal sends a signal to the process.
func (p *Process) Signal(sig unix.Signal) error {
	if err := unix.PidfdSendSignal(int(p.child.PidFD.Fd()), sig, nil, 0); err != nil {
		return fmt.Errorf("signal process %d: %w", p.child.PID, err)
	}
	return nil
}

// TimedOut reports, once Wait has returned, whether the supervisor has ended the process because of its time limit.
func (p *Process) TimedOut() bool { return p.timedOut }

// Close releases the pidfd, and the process's sub-cgroup if it is empty.
func (p *Process) Close() {
	if p.cgroup != nil {
		p.cgroup.Remove() //nolint:errcheck // what it left behind is in it, and the container's end takes both along
	}
	p.child.Close()
}

// Init returns the first process to the program that created the container, nil to others.
func (c *Container) Init() *Process {
	if c.child == nil {
		return nil
	}
	p := &Process{child: c.child}
	if c.supervisor != nil {
		p.exited = c.supervisor.Exited
	}
	return p
}

// Exec starts a further process in a container that runs. It goes through the same limits, ids, capabilities, Landlock
// and seccomp as the first one. The caller is its parent and waits for it. Once Exec has returned, the end of ctx does
// nothing to the process.
func (c *Container) Exec(ctx context.Context, o *ExecOptions) (*Process, error) {
	p, err := c.execute(ctx, o)
	return p, c.unlessEnded(err)
}

func (c *Container) execute(ctx context.Context, o *ExecOptions) (*Process, error) {
	if err := c.checkExec(o); err != nil {
		return nil, err
	}
	pidfd, err := c.pidfd()
	if err != nil {
		return nil, fmt.Errorf("cannot exec in a stopped container: %w", err)
	}
	defer pidfd.Close()
	d, err := c.details()
	if err != nil {
		return nil, err
	}
	process, err := c.planExec(o, d)
	if err != nil {
		return nil, err
	}
	if _, err := c.Supervisor(); err != nil {
		return nil, fmt.Errorf("cannot exec: %w", err)
	}
	p := &Process{}
	if p.cgroup, err = c.execBranch(o, d); err != nil {
		return nil, err
	}
	var begun *beginning
	if o.program == "" && c.transactional(process, o) {
		begun = c.beginBeside(process, o, pidfd)
	}
	counted, outs, ends, err := c.interposeExec(o, process, d)
	defer closeFiles(ends)
	defer closeOutputs(outs)
	if err == nil {
		p.child, err = c.spawnExec(counted, process, pidfd, begun, p)
	}
	tx, terr := begun.wait()
	if err == nil {
		err = terr
	}
	if err == nil {
		err = c.noteExec(o, p)
	}
	if err == nil {
		err = explainExec(c.admitUntil(ctx, p, process, o.Cgroups), process.Args)
		if err == nil {
			err = tx.started(p)
		}
		if err == nil {
			err = c.superviseExec(p, o, outs)
		}
		if err == nil {
			err = writePidFile(o.PidFile, p.child.PID)
		}
	}
	if err != nil {
		p.abandon(ctx.Err() == nil)
		if p.exited == nil { // otherwise the supervisor sees its end
			tx.abandon()
		}
		return nil, err
	}
	return p, nil
}

// planExec returns the process as the container's policy lets it be.
func (c *Container) planExec(o *ExecOptions, d *Detail) (*specs.Process, error) {
	process, notes, err := profiles.PlanExec(o.Process, d.Policy.Profile)
	if err != nil {
		return nil, err
	}
	if d.Policy.Warn != nil {
		warned := profiles.RehearseExec(o.Process, d.Policy.Warn)
		c.rt.keepWarnings(c.id, d.Policy.Warn.Name, warned)
		notes = append(notes, warned...)
	}
	for _, n := range notes {
		if !n.Routine {
			c.rt.opts.Warn(n.String())
		}
	}
	gatewayEnv(process, d.Policy.Profile, c.id, c.state.Created)
	inspectEnv(process, d.Policy.Inspection)
	inheritInForce(process, d.Process)
	return process, nil
}

// admitUntil is admit for as long as ctx lasts.
func (c *Container) admitUntil(ctx context.Context, p *Process, process *specs.Process, sub map[string]string) error {
	stop := context.AfterFunc(ctx, p.child.Interrupt)
	err := c.admit(p, process, sub)
	if !stop() {
		return fmt.Errorf("exec in container %q: %w", c.id, context.Cause(ctx))
	}
	return err
}

// abandon ends a process that has been started in vain, and waits for its end: not if its caller has given up, since it
// may be frozen.
func (p *Process) abandon(wait bool) {
	if kid := p.child; kid != nil {
		kid.Kill() //nolint:errcheck // gone is what we want
		reap := func() {
			kid.Wait() //nolint:errcheck // likewise
			kid.Close()
		}
		if wait {
			reap()
		} else {
			go reap()
		}
	}
	if p.cgroup != nil {
		p.cgroup.Kill(context.Background()) //nolint:errcheck // the container's own end takes it along
		p.cgroup.Remove()                   //nolint:errcheck // likewise
	}
}

func (c *Container) checkExec(o *ExecOptions) error {
	if err := validateProcess(o.Process); err != nil {
		return err
	}
	if o.Process.Terminal != (o.ConsoleSocket != nil) {
		return invalid("process.terminal", "a terminal and a console socket need each other")
	}
	status, err := c.Status()
	switch {
	case err != nil:
		return err
	case status == StatusStopped:
		return fmt.Errorf("cannot exec in a stopped container: %w", ErrNotRunning)
	case status == StatusPaused && !o.IgnorePaused:
		return fmt.Errorf("cannot exec in a paused container (use --ignore-paused to override): %w", ErrPaused)
	}
	return nil
}

// entrance opens the way into the process's control groups; nil if it has to be placed there.
func (c *Container) entrance(p *Process, sub map[string]string) (*cgroup.Entrance, error) {
	if len(sub) > 0 {
		return nil, nil //nolint:nilnil // admit finds the sub-cgroups
	}
	g, err := c.cgroupGroup()
	if err != nil || g == nil {
		return nil, err
	}
	e, err := g.Enter(p.cgroup)
	p.entered = e != nil
	return e, err
}

// spawnExec starts the child.
func (c *Container) spawnExec(o *ExecOptions, process *specs.Process, pidfd *os.File, begun *beginning, p *Process) (*initproc.Child, error) {
	root, err := os.OpenFile("/proc/"+strconv.Itoa(c.state.InitPID)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		// On its way out: a process gives up its root before it becomes a zombie.
		return nil, fmt.Errorf("cannot exec in a stopped container: %w", ErrNotRunning)
	}
	if err != nil {
		return nil, fmt.Errorf("open root of container %q: %w", c.id, err)
	}
	defer root.Close()
	groups, err := c.entrance(p, o.Cgroups)
	if err != nil {
		return nil, err
	}
	defer groups.Close()
	plan, err := planProcess(process, root)
	if err != nil {
		return nil, err
	}
	if o.program != "" {
		plan.Programs = []string{o.program}
	}
	c.detail.Policy.apply(&plan)
	c.detail.Domain.apply(&plan)
	if err := planAffinity(process.ExecCPUAffinity, &plan); err != nil {
		return nil, err
	}
	don := &initproc.Donation{}
	var streams stdio
	defer streams.close()
	if err := streams.donate(don, o.Stdin, o.Stdout, o.Stderr); err != nil {
		return nil, err
	}
	for _, f := range o.ExtraFiles {
		don.Add(f)
	}
	plan.PreserveFDs, plan.NullStdio, plan.PipeStdio = len(o.ExtraFiles), streams.nulls, streams.pipes
	plan.ConsoleFD = don.Add(o.ConsoleSocket)
	if l := c.detail.Policy.Listener; l != nil && o.program == "" { // a hook is not the listener's
		conn, err := l.donate(&plan, don, c.processState(StatusRunning))
		if err != nil {
			return nil, err
		}
		defer conn.Close()
	}
	tx, err := begun.wait()
	if err != nil {
		return nil, err
	}
	host, kid, err := initproc.Socketpair()
	if err != nil {
		return nil, err
	}
	defer kid.Close()
	in := &initproc.Exec{
		Process: plan, SyncFD: don.Add(kid), SetRootIDs: c.state.UserNS, Keyring: "_ses." + c.id, Views: tx.donate(don),
		Join: tx.join(don, pidfd, c.joinFlags()),
	}
	var birthplace *os.File
	if groups != nil {
		birthplace = groups.Birthplace
		for _, e := range groups.Entries {
			in.Cgroups = append(in.Cgroups, initproc.Cgroup{FD: don.Add(e.File), Path: e.File.Name(), Optional: e.Optional})
		}
	}
	if c.state.HostMounts {
		in.RootFD = don.Add(root)
	}
	return initproc.Spawn(initproc.PlanExec(in), host, &initproc.SpawnOptions{
		Donation: don, Cgroup: birthplace, CgroupOptional: p.cgroup == nil, // the unified hierarchy limits nothing here
	})
}

// joinFlags are the namespaces that an exec joins, all at once, through the first process's pidfd.
func (c *Container) joinFlags() int {
	flags := unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
	if !c.state.HostMounts {
		flags |= unix.CLONE_NEWNS
	}
	if c.state.UserNS {
		// Entering the user namespace that one is in already is an error, so only if there is another one.
		flags |= unix.CLONE_NEWUSER
	}
	if c.state.TimeNS {
		flags |= unix.CLONE_NEWTIME
	}
	if rootfs.InUserNamespace() {
		// Nor may root of a user namespace join the host's own, which it is in already and the container as well.
		for _, k := range namespaceKinds {
			if sameFile("/proc/self/ns/"+k.file, "/proc/"+strconv.Itoa(c.state.InitPID)+"/ns/"+k.file) {
				flags &^= k.flag
			}
		}
	}
	return flags
}

func sameFile(a, b string) bool {
	var sa, sb unix.Stat_t
	return unix.Stat(a, &sa) == nil && unix.Stat(b, &sb) == nil && sa.Dev == sb.Dev && sa.Ino == sb.Ino
}

// admit places the child in the container's cgroup, or the sub-cgroups of it that sub names, and lets it go on up to
// execve.
func (c *Container) admit(p *Process, process *specs.Process, sub map[string]string) error {
	if p.cgroup != nil && len(sub) > 0 {
		return errors.New("a sub-cgroup can't be chosen: the profile's limits give each exec one of its own")
	}
	child := p.child
	g, err := c.cgroupGroup()
	if err != nil {
		return err
	}
	switch {
	case p.entered:
	case p.cgroup != nil:
		err = p.cgroup.AddTo(g, child.PID, c.state.InitPID)
	case g != nil:
		err = g.AddExec(child.PID, c.state.InitPID, sub)
	}
	if err == nil {
		err = c.joinRDT(child.PID)
	}
	if err != nil {
		return err
	}
	if adj := process.OOMScoreAdj; adj != nil {
		if err := writeOOMScore(child.PID, *adj); err != nil {
			return err
		}
	}
	if err := c.watch(c.detail.Policy.Recording, child.PID, process); err != nil {
		return err
	}
	if err := child.Go(); err != nil {
		return err
	}
	if err := child.WaitFork(); err != nil {
		return err
	}
	if l := c.detail.Policy.Listener; l != nil {
		if err := l.tell(child, c.processState(StatusRunning)); err != nil {
			return err
		}
	}
	return child.WaitExec()
}
