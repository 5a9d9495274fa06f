package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/rootless"
)

// runDir is a directory that belongs to one run. A lock on it (flock on the
// directory itself) says that the run is alive; whoever can take the lock may
// remove the directory.
type runDir struct {
	path string
	root *os.Root
	lock *os.File
}

// claimRunDir makes and locks parent/id. The error is fs.ErrExist if the id is
// in use.
func claimRunDir(parent, id string) (*runDir, error) {
	if err := makeAll(parent); err != nil {
		return nil, err
	}
	if err := rootless.CheckPrivate(parent); err != nil {
		return nil, err
	}
	path := filepath.Join(parent, id)
	const attempts = 16 // a sweep may take an unlocked directory away
	for range attempts {
		if err := unix.Mkdir(path, 0o700); err != nil {
			return nil, fmt.Errorf("claim run %q: %w", id, err)
		}
		d, err := lockRunDir(path)
		if err == nil {
			return d, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("claim run %q: its directory keeps vanishing", id)
}

// lockRunDir takes the lock of an existing directory without waiting.
func lockRunDir(path string) (*runDir, error) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open run directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock run directory %q: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Nlink == 0 {
		f.Close()
		return nil, fmt.Errorf("run directory %q: %w", path, fs.ErrNotExist)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open run directory: %w", err)
	}
	return &runDir{path: path, root: root, lock: f}, nil
}

// remove deletes the directory with all that is in it and gives the lock back.
func (d *runDir) remove() error {
	err := os.RemoveAll(d.path)
	d.root.Close()
	d.lock.Close()
	if err != nil {
		return fmt.Errorf("remove run directory: %w", err)
	}
	return nil
}

// sweep removes the directories below parent that no living run has locked.
// before is called for each, and keeps the directory if it fails.
func sweep(ctx context.Context, parent string, before func(ctx context.Context, id, path string) error) error {
	entries, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for left-over runs: %w", err)
	}
	var failed []error
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		d, err := lockRunDir(path)
		if err != nil {
			continue // alive, or gone
		}
		if err := before(ctx, e.Name(), path); err != nil {
			d.root.Close()
			d.lock.Close()
			failed = append(failed, fmt.Errorf("clean up run %q: %w", e.Name(), err))
			continue
		}
		if err := d.remove(); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// makeAll makes a directory of our own and its parents.
func makeAll(dir string) error {
	host, err := os.OpenRoot("/")
	if err != nil {
		return fmt.Errorf("make directory %q: %w", dir, err)
	}
	defer host.Close()
	if err := host.MkdirAll(strings.TrimPrefix(filepath.Clean(dir), "/"), 0o700); err != nil {
		return fmt.Errorf("make directory %q: %w", dir, err)
	}
	return nil
}

// newID returns a name for a run whose caller gave none.
func newID() string {
	b := make([]byte, 6)
	rand.Read(b) // it never fails: crypto/rand, Go 1.24
	return "run-" + hex.EncodeToString(b)
}
