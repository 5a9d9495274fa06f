package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// Branch is a sub-cgroup that holds one process of a group and its descendants, whatever sessions and parents they give
// themselves: it limits nothing and is there to find and end them. No controllers are enabled for it, so that the
// group keeps its own processes beside it (cgroup-v2.rst, No Internal Process Constraint).
type Branch struct{ dir string }

// NewBranch makes a sub-cgroup named name. On hybrid hosts it is in the unified hierarchy, on pure v1 in the freezer's.
// The caller removes it.
func (g *Group) NewBranch(name string) (*Branch, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	parent := g.state.Paths[""]
	if parent == "" || !exists(parent) {
		parent = g.mainDir()
	}
	if name == "" || strings.ContainsAny(name, "/\x00") || name[0] == '.' {
		return nil, fmt.Errorf("make cgroup %q: %w: not a name", name, unix.EINVAL)
	}
	dir := filepath.Join(parent, name)
	if err := unix.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make cgroup %s: %w", dir, err)
	}
	return &Branch{dir}, nil
}

// UnifiedDir is the group's directory in the cgroup2 hierarchy, "" if it has none.
func (g *Group) UnifiedDir() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	dir := g.state.Paths[""]
	if dir == "" || !exists(dir) {
		return ""
	}
	return dir
}

// OpenBranch returns the branch of a directory that NewBranch has made, in another process perhaps. It refuses a path
// that is not below a cgroup mount.
func OpenBranch(dir string) (*Branch, error) {
	if err := checkStatePath(false, dir); err != nil {
		return nil, fmt.Errorf("open cgroup branch: %w", err)
	}
	return &Branch{dir}, nil
}

// Dir is the branch's directory.
func (b *Branch) Dir() string { return b.dir }

// AddTo is the group's AddExec for a process that belongs into one of its branches, where Group.Enter opens no way.
func (b *Branch) AddTo(g *Group, pid, initPID int) error {
	g.mu.Lock()
	unified, systemd := g.state.Paths[""], g.state.Driver != DriverFS
	inUnified := unified != "" && filepath.Dir(b.dir) == unified
	var dirs []string
	if inUnified {
		dirs = slices.DeleteFunc(g.dirs(), func(d string) bool { return d == unified })
	}
	g.mu.Unlock()
	if systemd || !inUnified {
		if err := g.AddExec(pid, initPID, nil); err != nil {
			return err
		}
		return b.Add(pid)
	}
	// The group's own directory in that hierarchy would be one move more, and on v2 the only one.
	for _, dir := range dirs {
		if err := placeProcess(dir, pid); err != nil && !g.isOptional(dir, err) {
			return fmt.Errorf("add process %d to cgroup %s: %w", pid, dir, err)
		}
	}
	return b.Add(pid)
}

// Add moves a process into the branch, after the group's own Add.
func (b *Branch) Add(pid int) error {
	if err := placeProcess(b.dir, pid); err != nil {
		return fmt.Errorf("add process %d to cgroup %s: %w", pid, b.dir, err)
	}
	return nil
}

// PIDs returns the processes of the branch, sub-cgroups included; a branch that is gone has none.
func (b *Branch) PIDs() ([]int, error) {
	pids, err := readPIDs(b.dir, true)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", b.dir, err)
	}
	return pids, nil
}

// Signal sends sig to every process of the branch.
func (b *Branch) Signal(sig unix.Signal) error {
	g := &Group{state: State{Unified: true, Paths: map[string]string{"": b.dir}}}
	return g.Signal(sig)
}

// Kill ends every process of the branch and waits for it, as Group.Kill does. Where the branch is a v1 cgroup, a frozen
// container has to be thawed by the caller.
func (b *Branch) Kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	for delay := 200 * time.Microsecond; ; delay = min(2*delay, 20*time.Millisecond) {
		pids, err := b.PIDs()
		if err != nil || len(pids) == 0 {
			return err
		}
		if cgroups.WriteFile(b.dir, "cgroup.kill", "1") != nil {
			if err := b.Signal(unix.SIGKILL); err != nil {
				return fmt.Errorf("kill cgroup: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kill cgroup %s: %d processes left: %w", b.dir, len(pids), ctx.Err())
		case <-time.After(delay):
		}
	}
}

// Remove removes the branch if nothing is left in it; the error is EBUSY otherwise. One that is gone is no error.
func (b *Branch) Remove() error {
	if err := unix.Rmdir(b.dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove cgroup %s: %w", b.dir, err)
	}
	return nil
}

// PIDsRefused returns how many forks the limit of processes has refused. Source: Linux cgroup-v2.rst, pids.events.
func (g *Group) PIDsRefused() (uint64, error) {
	dir := g.Path("pids")
	if dir == "" {
		return 0, fmt.Errorf("count refused forks: %w: no pids cgroup", ErrUnsupported)
	}
	n, err := readKey(dir, "pids.events", "max")
	if err != nil {
		return 0, fmt.Errorf("count refused forks of %s: %w", dir, err)
	}
	return n, nil
}

// PIDsPeak returns the most processes and threads that the group had at once; 0 where the kernel does not count them
// (before Linux 6.1). Source: Linux cgroup-v2.rst, pids.peak.
func (g *Group) PIDsPeak() uint64 {
	dir := g.Path("pids")
	if dir == "" {
		return 0
	}
	n, err := readUint(dir, "pids.peak")
	if err != nil {
		return 0
	}
	return n
}

// CPUTime returns the processor time that the group has used, those of ended processes included.
func (g *Group) CPUTime() (time.Duration, error) {
	g.mu.Lock()
	unified, dir := g.state.Unified, g.path("cpuacct")
	if dir == "" && !g.state.Unified {
		dir = g.path("cpu")
	}
	g.mu.Unlock()
	if dir == "" {
		return 0, fmt.Errorf("read CPU time: %w: no cpuacct cgroup", ErrUnsupported)
	}
	if unified {
		n, err := readKey(dir, "cpu.stat", "usage_usec")
		if err != nil {
			return 0, fmt.Errorf("read CPU time of %s: %w", dir, err)
		}
		return time.Duration(n) * time.Microsecond, nil //nolint:gosec // centuries fit
	}
	text, err := cgroups.ReadFile(dir, "cpuacct.usage")
	if err != nil {
		return 0, fmt.Errorf("read CPU time of %s: %w", dir, err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read CPU time of %s: %w", dir, err)
	}
	return time.Duration(n), nil
}
