package initproc

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaper waits for one child of this process, once; os.Process would do the same, but its first use in a program clones
// another child just to see whether pidfds work (0.9 ms here), and no kernel that agentsafe runs on is without them.
type reaper struct {
	pid    int
	once   sync.Once
	status syscall.WaitStatus
	err    error
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
	pid, _, err := syscall.StartProcess(path, []string{name}, attr)
	if err != nil {
		return nil, &os.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	return &reaper{pid: pid}, nil
}

// wait waits for the end of the child. Every call returns the same: once it is reaped its number may be another's.
func (r *reaper) wait() (syscall.WaitStatus, error) {
	r.once.Do(func() {
		for {
			_, r.err = syscall.Wait4(r.pid, &r.status, 0, nil)
			if !errors.Is(r.err, unix.EINTR) {
				return
			}
		}
	})
	return r.status, r.err
}

// Wait waits for the end of the process and reaps it. It may be called more than once, and returns the same each time.
func (c *Child) Wait() (syscall.WaitStatus, error) { return c.reaper.wait() }

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
