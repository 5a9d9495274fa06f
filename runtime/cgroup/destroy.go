package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Destroy removes the group's cgroups and the sub-cgroups that the container made in them. Nothing may run in them any
// more; where a process is just going, it waits up to a second. What is gone already is no error, so it can be repeated.
func (g *Group) Destroy() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.unit {
		return nil // never started
	}
	if g.state.Driver == DriverSystemd {
		if err := g.manager.Destroy(); err != nil {
			return fmt.Errorf("stop systemd unit: %w", err)
		}
	}
	left := g.dirs()
	for delay := 500 * time.Microsecond; ; delay *= 2 {
		var last error
		remaining := left[:0]
		for _, dir := range left {
			if err := removeTree(dir); err != nil {
				remaining, last = append(remaining, dir), err
			}
		}
		if left = remaining; len(left) == 0 {
			return nil
		}
		if !errors.Is(last, unix.EBUSY) || delay > 512*time.Millisecond {
			return fmt.Errorf("remove cgroups %s: %w", strings.Join(left, ", "), last)
		}
		time.Sleep(delay)
	}
}

// removeTree removes a cgroup, and if that doesn't do, its sub-cgroups first.
func removeTree(dir string) error {
	err := rmdir(dir)
	if err == nil || !errors.Is(err, unix.EBUSY) || !hasSubdirs(dir) {
		return err
	}
	entries, readErr := os.ReadDir(dir)
	if readErr != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return rmdir(dir)
}

func rmdir(dir string) error {
	for {
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !exists(dir):
			return nil // a read-only mount answers EROFS for what isn't there
		}
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
}
