package initproc

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Handle is a child process of this one, to end it and to wait for it. It stands in for os.Process, which clones a child
// of its own first to find out what the kernel can do: half a millisecond in each run of a container. Its methods may be
// called from several goroutines.
type Handle struct {
	pid  int
	mu   sync.Mutex
	gone bool // reaped: the number may be another process's
}

// Kill ends the process. It returns os.ErrProcessDone if it has been waited for.
func (h *Handle) Kill() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return os.ErrProcessDone
	}
	if err := unix.Kill(h.pid, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", h.pid, err)
	}
	return nil
}

// Wait waits until the process has ended and returns how. It returns os.ErrProcessDone if that has been done before.
func (h *Handle) Wait() (ExitStatus, error) {
	h.mu.Lock()
	gone := h.gone
	h.mu.Unlock()
	// Without reaping it: until then the number is this process's, and Kill may use it.
	for !gone {
		err := unix.Waitid(unix.P_PID, h.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("wait for process %d: %w", h.pid, err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return 0, os.ErrProcessDone
	}
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(h.pid, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait for process %d: %w", h.pid, err)
		}
		h.gone = true
		return ExitStatus(status), nil
	}
}

// ExitStatus is how a process ended, as wait(2) says it.
type ExitStatus syscall.WaitStatus

// Code returns the status that the process gave, 128+n if signal n ended it.
func (s ExitStatus) Code() int {
	const signalBase = 128
	ws := syscall.WaitStatus(s)
	if ws.Signaled() {
		return signalBase + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// Success reports whether the process ended by itself with status 0.
func (s ExitStatus) Success() bool { return s == 0 }

func (s ExitStatus) String() string {
	ws := syscall.WaitStatus(s)
	if ws.Signaled() {
		return "signal: " + ws.Signal().String()
	}
	return fmt.Sprintf("exit status %d", ws.ExitStatus())
}
