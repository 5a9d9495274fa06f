package main

import (
	"fmt"
	"io"
	"os"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// terminal joins our terminal to the one inside the container.
type terminal struct {
	hostEnd, childEnd *os.File // the socket over which the inner master arrives
	outer             console.Console
	inner             console.Console
	copied            chan struct{}
}

// attachedTerminal returns our terminal if standard input and output both are
// one; with a pipe on either side the task gets pipes, as `sh -c` would.
func attachedTerminal() console.Console {
	outer, err := console.ConsoleFromFile(os.Stdin)
	if err != nil {
		return nil
	}
	if _, err := console.ConsoleFromFile(os.Stdout); err != nil {
		return nil
	}
	return outer
}

func newTerminal(outer console.Console) (*terminal, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create console socket: %w", err)
	}
	return &terminal{
		hostEnd: os.NewFile(uintptr(fds[0]), "console"), childEnd: os.NewFile(uintptr(fds[1]), "console"),
		outer: outer, copied: make(chan struct{}),
	}, nil
}

// attach receives the container's terminal, makes ours raw and starts to copy.
func (t *terminal) attach() error {
	t.childEnd.Close()
	master, err := initproc.ReceiveTerminal(t.hostEnd)
	if err != nil {
		return err
	}
	if t.inner, err = console.ConsoleFromFile(master); err != nil {
		return fmt.Errorf("use terminal: %w", err)
	}
	if err := setRaw(t.outer); err != nil {
		return fmt.Errorf("set raw mode: %w", err)
	}
	t.resize()
	go func() {
		io.Copy(t.inner, os.Stdin) //nolint:errcheck // the end of either side ends it
	}()
	go func() {
		io.Copy(os.Stdout, t.inner) //nolint:errcheck // EIO is how a terminal says that its last process is gone
		close(t.copied)
	}()
	return nil
}

// setRaw makes every byte pass as it is. SetRaw alone leaves output processing
// on: lines that the inner terminal has ended with CR LF would get another CR,
// and a full-screen program's bare LF one that it did not want.
func setRaw(c console.Console) error {
	if err := c.SetRaw(); err != nil {
		return err
	}
	mode, err := unix.IoctlGetTermios(int(c.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	mode.Oflag &^= unix.OPOST
	return unix.IoctlSetTermios(int(c.Fd()), unix.TCSETS, mode)
}

// resize gives the inner terminal the size of ours.
func (t *terminal) resize() {
	if t != nil && t.inner != nil {
		t.inner.ResizeFrom(t.outer) //nolint:errcheck // the size is a courtesy
	}
}

// drain waits until what the container wrote has been copied. All of its
// processes must have ended.
func (t *terminal) drain() {
	if t != nil && t.inner != nil {
		<-t.copied
	}
}

// close gives our terminal back as it was. It may be called twice.
func (t *terminal) close() {
	if t == nil {
		return
	}
	if t.inner != nil {
		t.outer.Reset() //nolint:errcheck // nothing better to do
		t.inner.Close()
	}
	t.hostEnd.Close()
	t.childEnd.Close()
}
