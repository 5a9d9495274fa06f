package container

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/entry"
)

// program is a process of ours that goes on when the operation that has started it is over.
type program struct {
	pid  int
	mu   sync.Mutex
	gone bool // its number may be another's
}

// startProgram executes the file at path with these descriptors, which stay the caller's; nil is a closed one. within, if
// not nil, runs what it is given on a thread that is where the process is to be.
func startProgram(path string, args, env []string, files []*os.File, sys *syscall.SysProcAttr, within func(func() error) error) (*program, error) {
	attr := &syscall.ProcAttr{Dir: "/", Env: env, Sys: sys}
	for _, f := range files {
		fd := ^uintptr(0)
		if f != nil {
			fd = f.Fd()
		}
		attr.Files = append(attr.Files, fd)
	}
	p := &program{}
	start := func() (err error) {
		p.pid, err = entry.StartProcess(path, args, attr)
		return err
	}
	var err error
	if within != nil {
		err = within(start)
	} else {
		err = start()
	}
	runtime.KeepAlive(files)
	if err != nil {
		return nil, &os.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	return p, nil
}

// wait returns when the process has ended, and takes the zombie away.
func (p *program) wait() {
	for {
		// It stays a zombie until nobody can be about to signal its number.
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		p.gone = true
		syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil) //nolint:errcheck // it has ended
	}
}

// kill ends the process, unless it has ended.
func (p *program) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		unix.Kill(p.pid, unix.SIGKILL) //nolint:errcheck // gone is what we want
	}
}
