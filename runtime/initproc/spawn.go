package initproc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/thread"
)

// Donation collects the descriptors that a child is given; each has the number that Add returned. The files stay the
// caller's: they are duplicated into the child.
type Donation struct{ files []*os.File }

// Add gives f to the child and returns its number there; a nil f is None.
func (d *Donation) Add(f *os.File) int {
	if f == nil {
		return None
	}
	d.files = append(d.files, f)
	return len(d.files) - 1
}

// above returns a number that the standard library does not use while it arranges the child's descriptors: it moves
// those that are in the way to numbers from the highest of them upwards, one for each and one for its own pipe.
func (d *Donation) above() int {
	highest := len(d.files)
	for _, f := range d.files {
		highest = max(highest, int(f.Fd()))
	}
	return highest + len(d.files) + 3
}

// SpawnOptions says how a child comes into being.
type SpawnOptions struct {
	Donation   *Donation
	CloneFlags uintptr
	// PIDNamespace is entered before the clone, on a thread that ends with it. The caller owns it.
	PIDNamespace *os.File
	// Cgroup is a cgroup v2 directory to clone into; nil leaves the child in the caller's, and so does one that takes no
	// processes if CgroupOptional is set.
	Cgroup                   *os.File
	CgroupOptional           bool
	UIDMappings, GIDMappings []syscall.SysProcIDMap // of a new user namespace
	// DenySetgroups says that setgroups(2) is denied in the caller's own user namespace, so that it can't be allowed below.
	DenySetgroups bool
}

// Child is a running init program, seen from the process that cloned it.
type Child struct {
	PID     int
	PidFD   *os.File // owned by the Child
	reaper  *reaper
	program *Program
	sync    *os.File // owned
	// adopting is held while PidFD changes, which Interrupt may use meanwhile.
	adopting sync.Mutex
}

// Spawn clones a child that executes p. It returns once the child runs its own program, in its new namespaces. host
// is the host's end of the socket whose other end is p's SyncFD; the Child owns it from here on, also on error.
func Spawn(p *Program, host *os.File, o *SpawnOptions) (*Child, error) {
	exe, err := p.seal(o.Donation.above())
	if err != nil {
		host.Close()
		return nil, err
	}
	defer exe.Close()
	pidfd := -1
	attr := &syscall.SysProcAttr{
		Cloneflags:                 o.CloneFlags,
		PidFD:                      &pidfd,
		UidMappings:                o.UIDMappings,
		GidMappings:                o.GIDMappings,
		GidMappingsEnableSetgroups: !o.DenySetgroups,
	}
	if o.CloneFlags&unix.CLONE_NEWUSER != 0 {
		o.keepCapabilities(attr)
	}
	if o.Cgroup != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(o.Cgroup.Fd())
	}
	spawn := func() (*reaper, error) {
		return start("/proc/self/fd/"+strconv.Itoa(int(exe.Fd())), processName, o.Donation.files, attr)
	}
	if o.PIDNamespace != nil {
		spawn = inPIDNamespace(o.PIDNamespace, spawn)
	}
	r, err := spawn()
	if err != nil && attr.UseCgroupFD && o.CgroupOptional {
		attr.UseCgroupFD = false
		r, err = spawn()
	}
	if err != nil {
		host.Close()
		return nil, fmt.Errorf("clone init: %w", explainClone(err))
	}
	return &Child{PID: r.pid, PidFD: os.NewFile(uintptr(pidfd), "pidfd"), reaper: r, program: p, sync: host}, nil
}

// keepCapabilities makes a child in a new user namespace keep what it may do there over execve, which drops the
// capabilities of whoever is not root: it becomes root once the mappings are written, or, where no root is mapped, holds
// them as ambient ones until it takes on the ids and capabilities of the container's process.
func (o *SpawnOptions) keepCapabilities(attr *syscall.SysProcAttr) {
	if mapsRoot(o.UIDMappings) && mapsRoot(o.GIDMappings) {
		attr.Credential = &syscall.Credential{NoSetGroups: true}
		return
	}
	for c := range unix.CAP_LAST_CAP + 1 {
		attr.AmbientCaps = append(attr.AmbientCaps, uintptr(c)) //nolint:gosec // a small number
	}
}

func mapsRoot(m []syscall.SysProcIDMap) bool {
	return slices.ContainsFunc(m, func(l syscall.SysProcIDMap) bool { return l.ContainerID == 0 })
}

// inPIDNamespace runs start on a thread whose children are born into ns. The thread is not used again.
func inPIDNamespace(ns *os.File, start func() (*reaper, error)) func() (*reaper, error) {
	return func() (*reaper, error) {
		type result struct {
			r   *reaper
			err error
		}
		done := make(chan result)
		thread.Go(func() {
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID); err != nil {
				done <- result{nil, fmt.Errorf("join pid namespace: %w", err)}
				return
			}
			r, err := start()
			done <- result{r, err}
		})
		out := <-done
		return out.r, out.err
	}
}

// explainClone adds what an errno of clone(2) usually means.
func explainClone(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("a limit of /proc/sys/user/max_*_namespaces is reached: %w", err)
	case errors.Is(err, unix.EUSERS):
		return fmt.Errorf("user namespaces are nested too deeply: %w", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("new namespaces need CAP_SYS_ADMIN: %w", err)
	}
	return err
}

// Go lets a child that waits for the host continue.
func (c *Child) Go() error {
	if _, err := c.sync.Write([]byte{1}); err != nil {
		return c.unheard("continue init", err)
	}
	return nil
}

// unheard explains why the child could not be told something: what it has reported, or that it has ended.
func (c *Child) unheard(what string, err error) error {
	if f := c.Pending(); f != nil {
		return f
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return c.ended()
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Tell sends what a child with a seccomp listener waits for: the bytes that go with the descriptor. It is called after Go,
// for an exec after WaitFork.
func (c *Child) Tell(data []byte) error {
	if _, err := c.sync.Write(data); err != nil {
		return c.unheard("tell init of the seccomp listener", err)
	}
	return nil
}

// Pending returns the failure that the child has reported so far, without waiting; nil if there is none.
func (c *Child) Pending() error {
	poll := []unix.PollFd{{Fd: int32(c.sync.Fd()), Events: unix.POLLIN}} //nolint:gosec // descriptors fit
	if n, err := unix.Poll(poll, 0); n == 0 || err != nil {
		return nil //nolint:nilerr // what cannot be asked is not known yet
	}
	_, err := c.next()
	if errors.Is(err, errSilent) {
		return nil
	}
	return err
}

var errSilent = errors.New("init ended without a report")

// WaitHooks waits until the child is at its hook point.
func (c *Child) WaitHooks() error { return c.wait(phaseHooks) }

// WaitReady waits until the child is set up and waits for start. The error is a *Failure if the child reported one.
func (c *Child) WaitReady() error { return c.wait(phaseReady) }

// WaitExec waits until the child has executed the container's program. The error is a *Failure if it could not and has
// said so; one that was ended before (by a filter that kills, for want of memory) can't.
func (c *Child) WaitExec() error {
	_, err := c.next()
	if !errors.Is(err, errSilent) {
		return err
	}
	if c.reaper.hasExecuted() {
		return nil
	}
	return c.ended()
}

// WaitFork waits until the child has entered a pid namespace, which it does by a child of its own that takes its place
// here: PID and PidFD change. An exec does so after Go, a create with Unshare at once. The error is a *Failure if
// either has reported one.
func (c *Child) WaitFork() error {
	pid, err := c.next()
	var early *Failure
	if errors.As(err, &early) {
		// The one that forks, or the child that was quicker with its report than its parent with this one.
		if pid, err = c.next(); err != nil {
			return early
		}
	}
	if err != nil {
		return err
	}
	if err := c.adopt(int(pid)); err != nil { //nolint:gosec // a pid
		return err
	}
	if early != nil {
		return early
	}
	return nil
}

// adopt makes c stand for another child of this process.
func (c *Child) adopt(pid int) error {
	if _, err := c.Wait(); err != nil {
		return fmt.Errorf("wait for init: %w", err)
	}
	c.PID, c.reaper = pid, &reaper{pid: pid}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	c.adopting.Lock()
	defer c.adopting.Unlock()
	c.PidFD.Close()
	c.PidFD = os.NewFile(uintptr(fd), "pidfd")
	return nil
}

func (c *Child) wait(phase uint64) error {
	got, err := c.next()
	if err != nil {
		return err
	}
	if got != phase {
		return fmt.Errorf("init reports phase %d instead of %d: %w", got, phase, unix.EPROTO)
	}
	return nil
}

func (c *Child) next() (uint64, error) { return readReport(c.sync, c.program) }

func readReport(from io.Reader, p *Program) (uint64, error) {
	var record [reportBytes]byte
	_, err := io.ReadFull(from, record[:])
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET):
		return 0, errSilent
	case err != nil:
		return 0, fmt.Errorf("read report of init: %w", err)
	}
	if errno := binary.NativeEndian.Uint64(record[8:]); errno != 0 {
		if f := p.failure(record[:]); f != nil {
			return 0, f
		}
		return 0, &Failure{Index: -1, What: "init", Errno: unix.Errno(errno)}
	}
	return binary.NativeEndian.Uint64(record[:]), nil
}

// Close releases the host's end of the socket and the pidfd; a child that waits for the host then ends.
func (c *Child) Close() {
	c.sync.Close()
	if c.PidFD != nil {
		c.PidFD.Close()
	}
}

// Detach closes the sync socket alone.
func (c *Child) Detach() { c.sync.Close() }

// Socketpair returns the two ends of the socket that a child is controlled by. The caller owns both.
func Socketpair() (host, child *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create socket to init: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "init-host"), os.NewFile(uintptr(fds[1]), "init-child"), nil
}
