package container

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/fs/safepath"
	"github.com/agentsafe/agentsafe/fs/thread"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// What an exec in a transaction sees is a mount namespace: a copy of the container's, with overlays over the workspaces.
// Making one takes milliseconds, and so does taking it apart, of which most is waiting for other processors. So whoever
// supervises the container makes the next one when an exec has ended, and holds each until the exec's end has been told.

// spaces are the mount namespaces for transactions that a supervisor holds.
type spaces struct {
	cache layer.Cache // under the lock of the layers

	mu      sync.Mutex
	ready   *space
	ended   bool            // no more are made
	inUse   map[int]*space  // by the transaction's number
	closing []chan struct{} // each is closed when one has been taken apart
}

// space is one of them, with its layer in layer.Ready until a transaction has begun on it.
type space struct {
	ns *os.File
	// mounts tells by poll(2) whether the container's mounts have changed since it was opened; nil once in use.
	mounts *os.File
}

func (s *space) close() {
	if s == nil {
		return
	}
	s.ns.Close()
	s.mounts.Close() // nil has a Close, too
}

// stale reports whether the container has other mounts by now. Source: proc_pid_mounts(5).
func (s *space) stale() bool {
	poll := []unix.PollFd{{Fd: int32(s.mounts.Fd()), Events: unix.POLLPRI}} //nolint:gosec // descriptors fit
	n, err := unix.Poll(poll, 0)
	return err != nil || n > 0 && poll[0].Revents&(unix.POLLPRI|unix.POLLERR) != 0
}

// hasSpaces reports whether mount namespaces are made here for execs: not where the container's belongs to a user namespace
// or is the host's, as one that is made here would not; there the exec makes its own.
func (c *Container) hasSpaces() bool {
	return c.state.Layers != "" && !c.state.HostMounts && !c.state.UserNS && !rootfs.InUserNamespace()
}

// Transact begins a transaction for an exec that r.PID is about to start, and returns its number and the mount namespace
// that the exec is to join, which the caller owns. It is called by whoever supervises the container.
func (c *Container) Transact(r *wire.Transact) (n int, ns *os.File, err error) {
	d, err := c.details()
	if err != nil {
		return 0, nil, err
	}
	start, _, err := startTime(r.PID)
	if err != nil {
		return 0, nil, err
	}
	rule := d.Policy.Profile.Exec.Commit
	if r.Discard {
		rule = layer.CommitNever
	}
	l, err := c.openSettled()
	if err != nil {
		return 0, nil, err
	}
	defer l.Close()
	c.settleEnded(l)
	like := &layer.Transaction{Command: r.Args, Commit: rule, PID: r.PID, PIDStart: start}
	s := c.spaces.take()
	var tx *layer.Transaction
	if s != nil {
		if tx, err = l.BeginReserved(layer.Ready, like); err != nil {
			s.close() // the folder has another owner by now, say
			s = nil
		}
	}
	if s == nil {
		if s, err = c.makeSpace(l); err != nil {
			return 0, nil, err
		}
		if tx, err = l.BeginReserved(layer.Ready, like); err != nil {
			s.close()
			return 0, nil, err
		}
	}
	s.mounts.Close()
	s.mounts = nil
	fd, err := unix.FcntlInt(s.ns.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		s.close()
		return 0, nil, errors.Join(fmt.Errorf("duplicate mount namespace: %w", err), l.Abandon(tx.N))
	}
	c.spaces.use(tx.N, s)
	return tx.N, os.NewFile(uintptr(fd), "mount namespace"), nil
}

// take returns the space that is ready, if it is still as the container's mounts are; nil without.
func (s *spaces) take() *space {
	s.mu.Lock()
	r := s.ready
	s.ready = nil
	s.mu.Unlock()
	if r != nil && r.stale() {
		r.close()
		return nil
	}
	return r
}

// name returns what /proc/PID/ns/mnt says in a transaction's namespace; "" if there is none here.
func (s *spaces) name(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var st unix.Stat_t
	if sp := s.inUse[n]; sp == nil || unix.Fstat(int(sp.ns.Fd()), &st) != nil {
		return ""
	}
	return "mnt:[" + strconv.FormatUint(st.Ino, 10) + "]"
}

func (s *spaces) use(n int, sp *space) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inUse == nil {
		s.inUse = map[int]*space{}
	}
	s.inUse[n] = sp
}

// release lets go of the namespaces of transactions that are not open.
func (s *spaces) release(open func(n int) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, sp := range s.inUse {
		if !open(n) {
			delete(s.inUse, n)
			s.takeApart(sp)
		}
	}
}

// PrepareTransaction makes what the next transaction needs, so that its exec does not wait for it. Whoever supervises the
// container calls it when an exec has ended.
func (c *Container) PrepareTransaction() {
	if !c.hasSpaces() {
		return
	}
	l, err := layer.OpenCached(c.state.Layers, c.id, &c.spaces.cache)
	if err != nil {
		return // the container is on its way out; if not, the next exec says so
	}
	defer l.Close()
	if c.spaces.enough() {
		return
	}
	if s, err := c.makeSpace(l); err == nil { // likewise
		c.spaces.give(s)
	}
}

// enough reports whether there is one ready, or none will be taken any more.
func (s *spaces) enough() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready != nil || s.ended
}

// give keeps one for the next transaction. Only who holds the lock of the layers does so.
func (s *spaces) give(sp *space) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		s.takeApart(sp)
		return
	}
	s.ready = sp
}

// takeApart closes a space beside the rest: it waits for all processors (synchronize_rcu), which nobody else needs to do.
// mu is held.
func (s *spaces) takeApart(sp *space) {
	s.closing = slices.DeleteFunc(s.closing, func(done chan struct{}) bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	done := make(chan struct{})
	s.closing = append(s.closing, done)
	go func() {
		defer close(done)
		sp.close()
	}()
}

// EndTransactions lets go of what is held for transactions: the container's first process has ended, and what is mounted
// over its layers should end with it. It does not wait for who looks at the layers, which may take long.
func (c *Container) EndTransactions() {
	s := &c.spaces
	s.mu.Lock()
	if s.ready != nil {
		s.takeApart(s.ready)
	}
	s.ready, s.ended = nil, true
	s.mu.Unlock()
	s.release(func(int) bool { return false })
	s.mu.Lock()
	closing := slices.Clone(s.closing)
	s.mu.Unlock()
	for _, done := range closing {
		<-done
	}
}

// makeSpace makes a namespace with a layer in layer.Ready.
func (c *Container) makeSpace(l *layer.Layers) (s *space, err error) {
	pidfd, err := c.pidfd()
	if err != nil {
		return nil, err
	}
	defer pidfd.Close()
	// Before its mounts are copied: what changes from now on makes the copy stale.
	mounts, err := os.Open("/proc/" + strconv.Itoa(c.state.InitPID) + "/mounts")
	if err != nil {
		return nil, fmt.Errorf("watch mounts of container: %w", err)
	}
	if err = l.Reserve(layer.Ready); err == nil {
		var views []view
		views, err = mountViews(l, layer.Ready, pidfd)
		if err == nil {
			s = &space{mounts: mounts}
			s.ns, err = makeNamespace(pidfd, views)
		}
		for _, v := range views {
			v.tree.Close()
		}
	}
	if err != nil {
		mounts.Close()
		return nil, err
	}
	return s, nil
}

// mountViews mounts the views of a layer, detached.
func mountViews(l *layer.Layers, dir string, pidfd *os.File) (views []view, err error) {
	bases, err := openMounts(pidfd, mountPoints(l.Workspaces))
	if err != nil {
		return nil, err
	}
	for _, b := range bases {
		i := slices.IndexFunc(l.Workspaces, func(w layer.Workspace) bool { return w.Destination == b.destination })
		if i < 0 {
			views = append(views, b)
			continue
		}
		if err == nil {
			var mounted *os.File
			if mounted, err = l.Mount(dir, &l.Workspaces[i], b.tree); err == nil {
				views = append(views, view{b.destination, mounted})
			}
		}
		go b.tree.Close() // see spaces.takeApart
	}
	if err != nil {
		for _, v := range views {
			v.tree.Close()
		}
		return nil, err
	}
	return views, nil
}

// makeNamespace copies the container's mount namespace and lays views over its mounts. It is done on a thread that enters
// the container's and ends.
func makeNamespace(pidfd *os.File, views []view) (ns *os.File, err error) {
	thread.Run(func() {
		// Of the host's proc: in the container's there is no such thread.
		var self *os.File
		if self, err = os.OpenFile("/proc/thread-self", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return
		}
		defer self.Close()
		if err = unix.Unshare(unix.CLONE_FS); err != nil {
			err = fmt.Errorf("leave the working directory: %w", err)
			return
		}
		if err = unix.Setns(int(pidfd.Fd()), unix.CLONE_NEWNS); err != nil {
			err = fmt.Errorf("join mount namespace: %w", err)
			return
		}
		if err = unix.Unshare(unix.CLONE_NEWNS); err != nil {
			err = fmt.Errorf("create mount namespace: %w", err)
			return
		}
		// What the container mounts later still arrives; nothing of this namespace gets out.
		if err = unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_SLAVE}); err != nil {
			err = fmt.Errorf("set propagation: %w", err)
			return
		}
		if err = attachViews(views); err != nil {
			return
		}
		var fd int
		if fd, err = unix.Openat(int(self.Fd()), "ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			ns = os.NewFile(uintptr(fd), "mount namespace")
		}
	})
	if err != nil {
		return nil, fmt.Errorf("mount namespace of a transaction: %w", err)
	}
	return ns, nil
}

// attachViews lays views over the mounts of the calling thread's namespace.
func attachViews(views []view) error {
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, v := range views {
		at, err := safepath.OpenInRoot(root, v.destination, unix.O_PATH)
		if err != nil {
			return fmt.Errorf("open workspace %q: %w", v.destination, err)
		}
		err = unix.MoveMount(int(v.tree.Fd()), "", int(at.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
		at.Close()
		if err != nil {
			return fmt.Errorf("lay the transaction over %q: %w", v.destination, err)
		}
	}
	return nil
}
