package container

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/safepath"
	"github.com/agentsafe/agentsafe/fs/thread"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/initproc"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

const transactionAuto = "auto"

// transacts reports whether a profile gives execs layers of their own, which somebody has to commit at their end.
func transacts(p *profiles.Profile) bool {
	return p.Exec.Transaction == transactionAuto && p.Filesystem.Workspace.Mode == profiles.WorkspaceOverlay
}

// transactional reports whether an exec runs on a layer of its own: by profile or by wish, without a terminal, not as a
// health check, and in a container that has overlaid workspaces.
func (c *Container) transactional(process *specs.Process, o *ExecOptions) bool {
	return c.state.Layers != "" && !process.Terminal &&
		(o.Discard || c.detail.Policy.Profile.Exec.Transaction == transactionAuto && !c.detail.onBase(process))
}

// transaction is the layer of an exec that is being started.
type transaction struct {
	c *Container
	n int
	// supervisor is who has begun it; nil if that is this process, for an exec that makes its own mount namespace.
	supervisor Supervisor
	ns         *os.File // what the exec joins; nil without a supervisor's
	views      []view   // what the exec mounts by itself
}

// view is a mount that the exec sees in place of the container's, or that stands beneath one of those.
type view struct {
	destination string
	tree        *os.File
}

// beginning is a transaction that is being begun beside what else has to be done for its exec.
type beginning struct {
	done chan struct{}
	tx   *transaction
	err  error
}

// beginBeside is beginTransaction beside the caller, who has to wait for it.
func (c *Container) beginBeside(process *specs.Process, o *ExecOptions, pidfd *os.File) *beginning {
	b := &beginning{done: make(chan struct{})}
	go func() {
		defer close(b.done)
		b.tx, b.err = c.beginTransaction(process, o, pidfd)
	}()
	return b
}

// wait returns the transaction; nil if there is none. It may be called again.
func (b *beginning) wait() (*transaction, error) {
	if b == nil {
		return nil, nil //nolint:nilnil // see above
	}
	<-b.done
	return b.tx, b.err
}

// beginTransaction makes the layer and its views. pidfd is the container's first process.
func (c *Container) beginTransaction(process *specs.Process, o *ExecOptions, pidfd *os.File) (*transaction, error) {
	s, err := c.Supervisor()
	if err != nil {
		return nil, err
	}
	r := &wire.Transact{Args: wire.Shorten(process.Args), Discard: o.Discard, PID: os.Getpid()}
	if s != nil && c.hasSpaces() {
		n, ns, err := s.Transact(r)
		if err != nil {
			return nil, err
		}
		return &transaction{c: c, n: n, ns: ns, supervisor: s}, nil
	}
	l, err := c.openSettled()
	if err != nil {
		return nil, err
	}
	defer l.Close()
	c.settleEnded(l)
	rule := c.detail.Policy.Profile.Exec.Commit
	if o.Discard {
		rule = layer.CommitNever
	}
	began, err := l.Begin(r.Args, rule)
	if err != nil {
		return nil, err
	}
	tx := &transaction{c: c, n: began.N}
	start, _, err := startTime(r.PID)
	if err == nil {
		err = l.Process(began, r.PID, start)
	}
	if err == nil {
		tx.views, err = mountViews(l, began.Dir(), pidfd)
	}
	if err != nil {
		return nil, errors.Join(err, l.Abandon(tx.n))
	}
	return tx, nil
}

// settleEnded decides on execs that ended and were not seen to their end by a parent or a supervisor: the next one is to see
// what they did.
func (c *Container) settleEnded(l *layer.Layers) {
	if err := l.Settle(); err != nil {
		c.rt.opts.Warn(fmt.Sprintf("commit earlier transactions of container %q: %v", c.id, err))
	}
	c.spaces.release(func(n int) bool {
		return slices.ContainsFunc(l.Transactions, func(tx layer.Transaction) bool { return tx.N == n && tx.Status == layer.StatusOpen })
	})
}

// openSettled opens the layers once the supervisor, which knows how an exec has ended, has decided on those that have; not
// for long: it may be gone.
func (c *Container) openSettled() (*layer.Layers, error) {
	const tries, pause = 100, 2 * time.Millisecond
	for i := 0; ; i++ {
		l, err := layer.OpenCached(c.state.Layers, c.id, &c.spaces.cache)
		if err != nil || c.state.SupervisorPID == 0 || i == tries || !l.Unsettled() {
			return l, err
		}
		l.Close()
		time.Sleep(pause)
	}
}

// mountPoints lists the workspaces and what is mounted beneath them, parents first.
func mountPoints(workspaces []layer.Workspace) []layer.Workspace {
	var out []layer.Workspace
	for _, w := range workspaces {
		out = append(out, w)
		for _, n := range w.Nested {
			if !slices.ContainsFunc(workspaces, func(w layer.Workspace) bool { return w.Destination == n }) {
				out = append(out, layer.Workspace{Destination: n})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b layer.Workspace) int { return strings.Compare(a.Destination, b.Destination) })
	return slices.CompactFunc(out, func(a, b layer.Workspace) bool { return a.Destination == b.Destination })
}

// openMounts copies mounts of the container, each as a detached tree. open_tree(2) copies what is in the caller's mount
// namespace alone, so it is done on a thread that enters the container's and ends.
func openMounts(pidfd *os.File, points []layer.Workspace) ([]view, error) {
	var out []view
	done := make(chan error)
	thread.Go(func() {
		done <- func() error {
			// A namespace of mounts can't be entered by a thread that shares its working directory with others.
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("leave the working directory: %w", err)
			}
			if err := unix.Setns(int(pidfd.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("join mount namespace: %w", err)
			}
			root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer root.Close()
			for i := range points {
				tree, err := openMount(root, &points[i])
				if err != nil {
					return fmt.Errorf("open mount %q of the container: %w", points[i].Destination, err)
				}
				out = append(out, view{points[i].Destination, tree})
			}
			return nil
		}()
	})
	if err := <-done; err != nil {
		for _, v := range out {
			v.tree.Close()
		}
		return nil, err
	}
	return out, nil
}

// openMount copies one mount. A workspace must be the overlay that was made for it, whatever a task has renamed.
func openMount(root *os.File, w *layer.Workspace) (*os.File, error) {
	at, err := safepath.OpenInRoot(root, w.Destination, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	if w.MergedDev != 0 {
		if err := w.IsView(at); err != nil {
			return nil, err
		}
	}
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	if w.MergedDev == 0 {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(int(at.Fd()), "", flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path.Base(w.Destination)), nil
}

// donate gives the views to the child.
func (tx *transaction) donate(d *initproc.Donation) []initproc.View {
	if tx == nil {
		return nil
	}
	var out []initproc.View
	for _, v := range tx.views {
		out = append(out, initproc.View{TreeFD: d.Add(v.tree), Destination: v.destination})
	}
	return out
}

// join is the namespaces that the child enters: those of the container's first process, and the transaction's of mounts.
func (tx *transaction) join(d *initproc.Donation, pidfd *os.File, flags int) []initproc.Join {
	if tx == nil || tx.ns == nil {
		return []initproc.Join{{FD: d.Add(pidfd), Flag: flags}}
	}
	return []initproc.Join{{FD: d.Add(pidfd), Flag: flags &^ unix.CLONE_NEWNS}, {FD: d.Add(tx.ns), Flag: unix.CLONE_NEWNS}}
}

func (tx *transaction) close() {
	if tx == nil {
		return
	}
	for _, v := range tx.views {
		v.tree.Close()
	}
	tx.ns.Close() // nil has a Close, too
	tx.views, tx.ns = nil, nil
}

// abandon removes the layer of an exec that came to nothing.
func (tx *transaction) abandon() {
	if tx == nil {
		return
	}
	tx.close()
	var err error
	if tx.supervisor != nil {
		err = tx.supervisor.Abandon(tx.n)
	} else {
		err = tx.c.Abandon(tx.n)
	}
	if err != nil {
		tx.c.rt.opts.Warn(fmt.Sprintf("remove the layer of an exec that did not start: %v", err))
	}
}

// Abandon removes the layer of an exec that came to nothing.
func (c *Container) Abandon(n int) error {
	l, err := layer.OpenCached(c.state.Layers, c.id, &c.spaces.cache)
	if err != nil {
		return err
	}
	defer l.Close()
	c.spaces.release(func(other int) bool { return other != n })
	return l.Abandon(n)
}

// started writes down whose layer it is; a supervisor does so when it is told of the process.
func (tx *transaction) started(p *Process) error {
	if tx == nil {
		return nil
	}
	p.of, p.transaction = tx.c, tx.n
	tx.close()
	if tx.supervisor != nil {
		return nil
	}
	p.transaction = 0
	return tx.c.Transacting(tx.n, p.PID())
}

// Transacting notes the first process of a transaction.
func (c *Container) Transacting(n, pid int) error {
	l, err := layer.OpenCached(c.state.Layers, c.id, &c.spaces.cache)
	if err != nil {
		return err
	}
	defer l.Close()
	start, _, err := startTime(pid)
	if err != nil {
		// It has ended already; whoever asks for it finds no such process.
		start = 0
	}
	for i := range l.Transactions {
		if t := &l.Transactions[i]; t.N == n {
			t.MountNS = c.spaces.name(n)
			if t.MountNS == "" {
				t.MountNS = mountNamespace(pid)
			}
			return l.Process(t, pid, start)
		}
	}
	return fmt.Errorf("container %q has no transaction %d", c.id, n)
}

// mountNamespace names the mount namespace of a process; "" if it is gone.
func mountNamespace(pid int) string {
	link, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
	if err != nil {
		return ""
	}
	return link
}

// FinishExec decides on the transaction of an exec that has ended, by the number of its first process: its layer is
// committed, discarded or kept as a conflict. status is nil where nobody knows it. It returns what became of it; nil for
// an exec without a transaction, and for one that was decided on already. later, which may be nil, is left to do for the
// caller, who need not wait for it; until it is done nobody else can open the layers.
func (c *Container) FinishExec(pid int, status *int) (done *layer.Transaction, later func(), err error) {
	if c.state.Layers == "" {
		return nil, nil, nil
	}
	c.finishing.Lock()
	defer c.finishing.Unlock()
	l, err := layer.OpenCached(c.state.Layers, c.id, &c.spaces.cache)
	if errors.Is(err, layer.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if later == nil {
			l.Close()
		}
	}()
	i := slices.IndexFunc(l.Transactions, func(tx layer.Transaction) bool { return tx.PID == pid && tx.Status == layer.StatusOpen })
	if i < 0 {
		return nil, nil, nil
	}
	tx := &l.Transactions[i]
	if c.background() == backgroundKill {
		if err := c.killLeft(tx.MountNS); err != nil {
			return nil, nil, err
		}
	}
	n := tx.N
	rest, err := l.Conclude(n, status)
	if err != nil {
		return nil, nil, err
	}
	copied := *tx
	release := func() { c.spaces.release(func(other int) bool { return other != n }) }
	if rest == nil {
		release()
		return &copied, nil, nil
	}
	return &copied, func() {
		defer l.Close()
		if err := rest(); err != nil {
			c.rt.opts.Warn(fmt.Sprintf("log transaction %d of container %q: %v", n, c.id, err))
		}
		release()
	}, nil
}

const backgroundKill = "kill"

// background is what becomes of processes that outlive their exec.
func (c *Container) background() string {
	d, err := c.details()
	if err != nil || d.Policy.Profile.Filesystem.Workspace.Background == "" {
		return backgroundKill
	}
	return d.Policy.Profile.Filesystem.Workspace.Background
}

// killLeft ends the processes that an exec has left behind: those of the container that see its layer.
func (c *Container) killLeft(namespace string) error {
	if namespace == "" {
		return nil
	}
	g, err := c.cgroupGroup()
	if err != nil || g == nil {
		return err
	}
	const tries, pause = 500, 2 * time.Millisecond
	for range tries {
		pids, err := g.PIDs(true)
		if err != nil {
			return fmt.Errorf("list processes of container %q: %w", c.id, err)
		}
		left := 0
		for _, pid := range pids {
			if pid != c.state.InitPID && killIn(pid, namespace) {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		time.Sleep(pause)
	}
	return fmt.Errorf("processes of an exec in container %q do not end: %w", c.id, unix.EBUSY)
}

// killIn ends a process if it is in the mount namespace; it reports whether it was. By a handle: the number may be
// another's by now.
func killIn(pid int, namespace string) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if mountNamespace(pid) != namespace {
		return false
	}
	unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) //nolint:errcheck // gone is what we want
	return true
}
