package initproc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/entry"
)

// reaper waits for one child of this process, once; os.Process would do the same, but its first use in a program clones
// another child just to see whether pidfds work (0.9 ms here), and no kernel that agentsafe runs on is without them.
type reaper struct {
	pid    int
	once   sync.Once
	status syscall.WaitStatus
	err    error

	// judging guards what follows: whether it was asked already if the process has executed the container's program, and
	// the answer. Nobody can be asked once it is reaped.
	judging          sync.Mutex
	judged, executed bool
}

// hasExecuted asks, once, whether the process has executed the container's program.
func (r *reaper) hasExecuted() bool {
	r.judging.Lock()
	defer r.judging.Unlock()
	if !r.judged {
		r.judged, r.executed = true, Executed(r.pid)
	}
	return r.executed
}

// lastWords asks a process that ends before somebody has asked it.
func (r *reaper) lastWords() {
	r.judging.Lock()
	judged := r.judged
	r.judging.Unlock()
	if judged {
		return
	}
	for {
		err := unix.Waitid(unix.P_PID, r.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	r.hasExecuted()
}

// start clones a child that executes the file at path under a name.
func start(path, name string, files []*os.File, sys *syscall.SysProcAttr) (*reaper, error) {
	attr := &syscall.ProcAttr{Env: []string{}, Sys: sys}
	for _, f := range files {
		fd := ^uintptr(0) // closed in the child
		if f != nil {
			fd = f.Fd()
		}
		attr.Files = append(attr.Files, fd)
	}
	pid, err := entry.StartProcess(path, []string{name}, attr)
	if err != nil {
		return nil, &os.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	return &reaper{pid: pid}, nil
}

// wait waits for the end of the child. Every call returns the same: once it is reaped its number may be another's.
func (r *reaper) wait() (syscall.WaitStatus, error) {
	r.once.Do(func() {
		r.lastWords()
		for {
			_, r.err = syscall.Wait4(r.pid, &r.status, 0, nil)
			if !errors.Is(r.err, unix.EINTR) {
				return
			}
		}
	})
	return r.status, r.err
}

// Adopt returns a child of this process that somebody else has made, of which nothing but its number is known. It runs its
// own program already: what speaks to init is not for it.
func Adopt(pid int) (*Child, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return &Child{PID: pid, PidFD: os.NewFile(uintptr(fd), "pidfd"), reaper: &reaper{pid: pid, judged: true, executed: true}}, nil
}

// Wait waits for the end of the process and reaps it. It may be called more than once, and returns the same each time.
func (c *Child) Wait() (syscall.WaitStatus, error) { return c.reaper.wait() }

// Interrupt ends a child that is being set up: whoever waits for it gets an error. It may be called beside a wait.
func (c *Child) Interrupt() {
	c.adopting.Lock()
	defer c.adopting.Unlock()
	unix.PidfdSendSignal(int(c.PidFD.Fd()), unix.SIGKILL, nil, 0) //nolint:errcheck // gone is what we want
	// A process in a frozen cgroup ends when that is thawed; nobody shall wait for it that long.
	unix.Shutdown(int(c.sync.Fd()), unix.SHUT_RD) //nolint:errcheck // likewise
}

// processName is how init calls itself until it executes the container's program.
const processName = "agentsafe:init"

// Executed tells the two ends of a child's stream apart: whether the process that was init has executed the container's
// program, or ended before. What can't be found out, because somebody has reaped it, counts as executed. In execve(2) the
// kernel changes the program before it closes descriptors, and a process keeps its last name as a zombie.
func Executed(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	exe, err := os.Readlink(dir + "/exe")
	if err == nil {
		return !strings.HasPrefix(exe, "/memfd:"+imageName)
	}
	if !errors.Is(err, unix.ENOENT) {
		return true
	}
	name, err := os.ReadFile(dir + "/comm")
	return err != nil || strings.TrimSuffix(string(name), "\n") != processName
}

// ended says how a child has ended that never executed its program.
func (c *Child) ended() error {
	c.Kill() //nolint:errcheck // it is ending in any case
	const patienceMillis = 1000
	poll := []unix.PollFd{{Fd: int32(c.PidFD.Fd()), Events: unix.POLLIN}} //nolint:gosec // descriptors fit
	why := ""
	if n, err := unix.Poll(poll, patienceMillis); n > 0 && err == nil {
		if st, err := c.Wait(); err == nil && st.Signaled() {
			why = ": signal: " + st.Signal().String()
		} else if err == nil {
			why = ": exit status " + strconv.Itoa(st.ExitStatus())
		}
	}
	return fmt.Errorf("%w%s", ErrNotExecuted, why)
}

// ErrNotExecuted says that init has ended, without a word, before it executed the container's program.
var ErrNotExecuted = errors.New("init ended before it executed the program")

// Kill sends SIGKILL. A process that has ended is no error.
func (c *Child) Kill() error {
	err := unix.PidfdSendSignal(int(c.PidFD.Fd()), unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		err = unix.Kill(c.PID, unix.SIGKILL) // a sandbox around agentsafe may know nothing of pidfds
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
