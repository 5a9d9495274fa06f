package container

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Status finds out what the container is doing, from the kernel rather than from the state file.
func (c *Container) Status() (Status, error) {
	if c.state == nil || c.state.InitPID == 0 {
		return StatusStopped, nil
	}
	if !c.initAlive() {
		return StatusStopped, nil
	}
	g, err := c.cgroupGroup()
	if err != nil {
		return "", err
	}
	if g != nil && g.Frozen() {
		return StatusPaused, nil
	}
	if c.waitsForStart() {
		return StatusCreated, nil
	}
	return StatusRunning, nil
}

// initAlive reports whether the first process exists and is neither a zombie nor another process of the same number.
func (c *Container) initAlive() bool {
	ticks, state, err := startTime(c.state.InitPID)
	return err == nil && ticks == c.state.InitStart && state != 'Z' && state != 'X'
}

// waitsForStart reports whether init still is our own program. A container can't look like it: the socket is removed
// when the container has been started.
func (c *Container) waitsForStart() bool {
	var st unix.Stat_t
	if unix.Fstatat(int(c.dir.Fd()), startSocket, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return false
	}
	exe, err := os.Readlink("/proc/" + strconv.Itoa(c.state.InitPID) + "/exe")
	return err == nil && strings.HasPrefix(exe, "/memfd:agentsafe-init")
}

// pidfd opens the first process; the error is ErrNotRunning if it is gone.
func (c *Container) pidfd() (*os.File, error) {
	if c.state.InitPID == 0 {
		return nil, ErrNotRunning
	}
	fd, err := unix.PidfdOpen(c.state.InitPID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, fmt.Errorf("open init of container %q: %w", c.id, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	// Only now the number can't be reused any more: is it still the same process?
	if !c.initAlive() {
		f.Close()
		return nil, ErrNotRunning
	}
	return f, nil
}
