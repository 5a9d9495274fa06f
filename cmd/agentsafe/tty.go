package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// terminal connects the caller's terminal to the container's.
type terminal struct {
	hostEnd, childEnd *os.File // the socket over which the container's master arrives
	master            console.Console
	outer             console.Console // the caller's, in raw mode; nil if the caller has none
	copied            chan struct{}
}

// openTerminal reads the bundle's spec into o, and prepares a terminal if its process wants one.
func openTerminal(o *container.CreateOptions) (*terminal, error) {
	var err error
	if o.Spec, err = loadSpec(o.Bundle); err != nil {
		return nil, nil //nolint:nilerr,nilnil // Create reads the file again and says what is wrong with it
	}
	if o.Spec.Process == nil || !o.Spec.Process.Terminal {
		return nil, nil //nolint:nilnil // no terminal and no error
	}
	if o.ConsoleSocket != nil {
		return nil, errors.New("run without --detach keeps the terminal itself; --console-socket needs --detach")
	}
	t, err := newTerminal()
	if err != nil {
		return nil, err
	}
	o.ConsoleSocket = t.childEnd
	return t, nil
}

func loadSpec(bundle string) (*specs.Spec, error) {
	if bundle == "" {
		bundle = "."
	}
	dir, err := os.OpenFile(bundle, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return container.LoadSpec(dir)
}

func newTerminal() (*terminal, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create console socket: %w", err)
	}
	return &terminal{
		hostEnd: os.NewFile(uintptr(fds[0]), "console"), childEnd: os.NewFile(uintptr(fds[1]), "console"),
		copied: make(chan struct{}),
	}, nil
}

// attach receives the master and starts to copy.
func (t *terminal) attach() error {
	if t == nil {
		return nil
	}
	t.childEnd.Close()
	master, err := initproc.ReceiveTerminal(t.hostEnd)
	if err != nil {
		return err
	}
	if t.master, err = console.ConsoleFromFile(master); err != nil {
		return fmt.Errorf("use terminal: %w", err)
	}
	// Callers that read the output through a pipe expect "\n" as the process wrote it.
	if err := console.ClearONLCR(t.master.Fd()); err != nil {
		return fmt.Errorf("set up terminal: %w", err)
	}
	if outer, err := console.ConsoleFromFile(os.Stdin); err == nil {
		if err := outer.SetRaw(); err != nil {
			return fmt.Errorf("set raw mode: %w", err)
		}
		t.outer = outer
		t.resize()
	}
	go func() {
		io.Copy(t.master, os.Stdin) //nolint:errcheck // the end of either side ends it
	}()
	go func() {
		io.Copy(os.Stdout, t.master) //nolint:errcheck // EIO is how a terminal says that its last process is gone
		close(t.copied)
	}()
	return nil
}

func (t *terminal) resize() {
	if t == nil || t.outer == nil || t.master == nil {
		return
	}
	t.master.ResizeFrom(t.outer) //nolint:errcheck // the size is a courtesy
}

// drain waits until what the container wrote has been copied.
func (t *terminal) drain() {
	if t != nil && t.master != nil {
		<-t.copied
	}
}

// close gives the caller's terminal back as it was.
func (t *terminal) close() {
	if t == nil {
		return
	}
	if t.outer != nil {
		t.outer.Reset() //nolint:errcheck // nothing better to do
	}
	t.hostEnd.Close()
}
