package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OOMKillCount returns how many processes of the group the kernel has killed for lack of memory. A shim reads it before
// it reports an exit, so that an OOM event comes first.
func (g *Group) OOMKillCount() (uint64, error) {
	g.mu.Lock()
	dir, file := g.path("memory"), "memory.oom_control"
	unified := g.state.Unified
	g.mu.Unlock()
	if unified {
		file = "memory.events"
	}
	if dir == "" {
		return 0, fmt.Errorf("count OOM kills: %w: no memory cgroup", ErrUnsupported)
	}
	n, err := readKey(dir, file, "oom_kill")
	if err != nil {
		return 0, fmt.Errorf("count OOM kills of %s: %w", dir, err)
	}
	return n, nil
}

// WatchOOM sends OOMKillCount whenever the group runs out of memory. On v1 the event comes before the kill, so the number
// may still be 0. The channel is closed when the cgroup goes, when its last process has left (v2), or when ctx ends.
func (g *Group) WatchOOM(ctx context.Context) (<-chan uint64, error) {
	g.mu.Lock()
	dir, unified := g.path("memory"), g.state.Unified
	g.mu.Unlock()
	if dir == "" {
		return nil, fmt.Errorf("watch OOM: %w: no memory cgroup", ErrUnsupported)
	}
	open, more := openOOMEventV1, g.moreV1
	if unified {
		open, more = openOOMEventV2, g.moreV2
	}
	events, err := open(dir)
	if err != nil {
		return nil, fmt.Errorf("watch OOM of %s: %w", dir, err)
	}
	counts := make(chan uint64)
	stop := context.AfterFunc(ctx, func() { events.Close() })
	go func() {
		defer close(counts)
		defer events.Close()
		defer stop()
		var last uint64
		buf := make([]byte, 4096)
		for {
			if _, err := events.Read(buf); err != nil {
				return
			}
			count, send, end := more(dir, last)
			if send {
				last = count
				select {
				case counts <- count:
				case <-ctx.Done():
					return
				}
			}
			if end {
				return
			}
		}
	}()
	return counts, nil
}

// moreV1 judges an event: the kernel also signals the eventfd when the cgroup is removed.
func (g *Group) moreV1(dir string, _ uint64) (count uint64, send, end bool) {
	if !exists(dir) {
		return 0, false, true
	}
	count, err := g.OOMKillCount()
	return count, err == nil, errors.Is(err, os.ErrNotExist)
}

// moreV2 judges an event: memory.events changes for other reasons too.
func (g *Group) moreV2(dir string, last uint64) (count uint64, send, end bool) {
	count, err := g.OOMKillCount()
	if err != nil {
		return 0, false, true
	}
	populated, err := readKey(dir, "cgroup.events", "populated")
	return count, count > last, err != nil || populated == 0
}

// openOOMEventV1 registers an eventfd. Source: Linux admin-guide/cgroup-v1/memory.rst, OOM Control.
func openOOMEventV1(dir string) (*os.File, error) {
	control, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return nil, err
	}
	defer control.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	line := fmt.Sprintf("%d %d", fd, control.Fd())
	if err := os.WriteFile(filepath.Join(dir, "cgroup.event_control"), []byte(line), 0); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "oom eventfd"), nil
}

// openOOMEventV2 watches memory.events, and cgroup.events for the end: cgroup files don't report their removal.
func openOOMEventV2(dir string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	for _, name := range []string{"memory.events", "cgroup.events"} {
		path := filepath.Join(dir, name)
		if _, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY); err != nil {
			unix.Close(fd)
			return nil, &os.PathError{Op: "watch", Path: path, Err: err}
		}
	}
	return os.NewFile(uintptr(fd), "oom inotify"), nil
}
