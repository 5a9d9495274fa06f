package cgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// killTimeout ends a Kill whose context has no deadline: a process in uninterruptible sleep may never go.
const killTimeout = 10 * time.Second

// Kill sends SIGKILL to everything in the group, sub-cgroups included, and returns when nothing is left. Frozen groups
// are thawed for it. Processes that fork on meanwhile die too. If ctx ends first, or 10 s have passed, it returns an
// error with how many are left.
func (g *Group) Kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	for delay := 200 * time.Microsecond; ; delay = min(2*delay, 20*time.Millisecond) {
		left, err := g.killOnce()
		if err != nil {
			return fmt.Errorf("kill cgroup: %w", err)
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kill cgroup: %d processes left: %w", left, ctx.Err())
		case <-time.After(delay):
		}
	}
}

// killOnce kills what is there now. cgroup.kill is atomic against forks (Linux 5.14, 661ee6280931 "cgroup: introduce
// cgroup.kill"); on a hybrid host the unified hierarchy has it. Without it, or if processes left that hierarchy, v1 has
// to freeze first: a fork bomb forks faster than a list can be walked.
func (g *Group) killOnce() (found int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	pids, err := g.pids(true)
	if err != nil || len(pids) == 0 {
		return 0, err
	}
	if dir := g.state.Paths[""]; dir != "" {
		err := cgroups.WriteFile(dir, "cgroup.kill", "1")
		if err == nil && (g.state.Unified || !g.frozen() && waitGone(pids)) {
			return len(pids), nil
		}
	}
	return len(pids), g.killFrozen(pids)
}

// waitGone gives processes that were just killed a few milliseconds to exit, and says whether all did.
func waitGone(pids []int) bool {
	pids = slices.Clone(pids)
	for range 20 {
		pids = slices.DeleteFunc(pids, func(pid int) bool { return unix.Kill(pid, 0) != nil })
		if len(pids) == 0 {
			return true
		}
		time.Sleep(200 * time.Microsecond)
	}
	return false
}

// killFrozen freezes, kills and thaws. Freezing needs not be complete, as Kill comes back. The thaw is not optional: a
// frozen v1 task dies only when it runs again.
func (g *Group) killFrozen(pids []int) error {
	file, frozen, thawed := "freezer.state", string(cgroups.Frozen), string(cgroups.Thawed)
	if g.state.Unified {
		file, frozen, thawed = "cgroup.freeze", "1", "0"
	}
	if dir := g.path("freezer"); dir != "" {
		if err := cgroups.WriteFile(dir, file, frozen); err == nil {
			if now, err := g.pids(true); err == nil {
				pids = now
			}
		}
		defer cgroups.WriteFile(dir, file, thawed) //nolint:errcheck // Kill comes back and sees that processes are left
	}
	return g.signal(pids, unix.SIGKILL)
}

// Signal sends sig to every process of the group, sub-cgroups included. Processes that start meanwhile may miss it.
func (g *Group) Signal(sig unix.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	pids, err := g.pids(true)
	if err != nil {
		return err
	}
	return g.signal(pids, sig)
}

// signal signals pids through pidfds, of which it keeps at most a batch open. A number may have passed to a process of
// the host between the listing and pidfd_open; the second listing tells, because what it still names was there when the
// pidfd was opened or has taken the number since, in which case the pidfd answers ESRCH.
func (g *Group) signal(pids []int, sig unix.Signal) error {
	const batch = 128
	var first error
	for part := range slices.Chunk(pids, batch) {
		fds := make(map[int]int, len(part))
		for _, pid := range part {
			fd, err := unix.PidfdOpen(pid, 0)
			switch {
			case err == nil:
				fds[pid] = fd
			case !errors.Is(err, unix.ESRCH) && first == nil:
				first = fmt.Errorf("open process %d: %w", pid, err)
			}
		}
		now, err := g.pids(true)
		if err != nil && first == nil {
			first = err
		}
		for _, pid := range now {
			fd, ok := fds[pid]
			if !ok {
				continue
			}
			if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) && first == nil {
				first = fmt.Errorf("signal process %d: %w", pid, err)
			}
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	return first
}
