package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Kill sends a signal to the first process, or with all to every process of the container. The error is
// ErrNotRunning when there is none.
func (c *Container) Kill(ctx context.Context, sig unix.Signal, all bool) error {
	if all || (sig == unix.SIGKILL && !c.state.OwnPID) {
		// Without a pid namespace the kernel does not end the others with the first process.
		return c.signalAll(ctx, sig)
	}
	if err := c.signalInit(sig); err != nil {
		return err
	}
	if sig == unix.SIGKILL {
		// A frozen process dies only once it is thawed (cgroup v1).
		return c.thawIfFrozen()
	}
	return nil
}

func (c *Container) signalInit(sig unix.Signal) error {
	pidfd, err := c.pidfd()
	if err != nil {
		return err
	}
	defer pidfd.Close()
	err = unix.PidfdSendSignal(int(pidfd.Fd()), sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return ErrNotRunning
	}
	if err != nil {
		return fmt.Errorf("signal init of container %q: %w", c.id, err)
	}
	return nil
}

func (c *Container) signalAll(ctx context.Context, sig unix.Signal) error {
	g, err := c.cgroupGroup()
	if err != nil {
		return err
	}
	if g == nil {
		// Nothing tells the others but the pid namespace, which ends with its first process.
		return c.signalInit(sig)
	}
	if sig == unix.SIGKILL {
		return g.Kill(ctx)
	}
	return g.Signal(sig)
}

func (c *Container) thawIfFrozen() error {
	g, err := c.cgroupGroup()
	if err != nil || g == nil || !g.Frozen() {
		return err
	}
	return g.Thaw()
}

// killTimeout bounds how long the end of a killed container is waited for.
const killTimeout = 10 * time.Second

// killAll ends every process of the container and waits for it.
func (c *Container) killAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, killTimeout, errors.New("the container's processes do not end"))
	defer cancel()
	pidfd, err := c.pidfd()
	if err == nil {
		defer pidfd.Close()
		if err := unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill init of container %q: %w", c.id, err)
		}
	} else if !errors.Is(err, ErrNotRunning) {
		return err // not to be taken for a container that has ended
	}
	g, gerr := c.cgroupGroup()
	if gerr != nil {
		return gerr
	}
	if g != nil {
		if err := g.Kill(ctx); err != nil {
			return fmt.Errorf("kill container %q: %w", c.id, err)
		}
	}
	if pidfd != nil {
		return waitExit(ctx, pidfd)
	}
	return nil
}

// waitExit waits until the process of the pidfd has ended, whoever's child it is.
func waitExit(ctx context.Context, pidfd *os.File) error {
	for ctx.Err() == nil {
		const pollMillis = 100
		fds := []unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}} //nolint:gosec // descriptors fit
		n, err := unix.Poll(fds, pollMillis)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for init: %w", err)
		}
	}
	return context.Cause(ctx)
}
