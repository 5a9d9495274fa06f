package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Use is what a group uses at one moment.
type Use struct {
	MemoryBytes uint64
	// CPU is the processor time until now, that of ended processes included.
	CPU  time.Duration
	PIDs uint64
}

// Meter reads what a group uses. Its files stay open, so that a reading is three system calls: [Group.Stats] opens some
// twenty files. A controller that the group does not have reads as 0.
type Meter struct {
	memory, cpu, pids *os.File
	unified           bool
}

// OpenMeter opens the files of a Meter; the caller closes it. The error is ErrUnsupported if the group has none of the
// controllers.
func (g *Group) OpenMeter() (*Meter, error) {
	g.mu.Lock()
	m := &Meter{unified: g.state.Unified}
	memory, cpu, pids := g.path("memory"), g.path("cpuacct"), g.path("pids")
	if m.unified {
		cpu = memory
	}
	g.mu.Unlock()
	names := [...]string{"memory.usage_in_bytes", "cpuacct.usage", "pids.current"}
	if m.unified {
		names = [...]string{"memory.current", "cpu.stat", "pids.current"}
	}
	for i, f := range []struct {
		to  **os.File
		dir string
	}{{&m.memory, memory}, {&m.cpu, cpu}, {&m.pids, pids}} {
		if f.dir == "" {
			continue
		}
		file, err := os.OpenFile(filepath.Join(f.dir, names[i]), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // a controller that is not delegated
		}
		if err != nil {
			m.Close()
			return nil, fmt.Errorf("open meter: %w", err)
		}
		*f.to = file
	}
	if m.memory == nil && m.cpu == nil && m.pids == nil {
		return nil, fmt.Errorf("open meter: %w: no controller that counts", ErrUnsupported)
	}
	return m, nil
}

// Read reads the counters. The error is ENODEV once the group is gone.
func (m *Meter) Read() (Use, error) {
	var u Use
	var err error
	if u.MemoryBytes, err = m.number(m.memory, ""); err != nil {
		return u, err
	}
	key, unit := "", time.Nanosecond
	if m.unified {
		key, unit = "usage_usec ", time.Microsecond
	}
	n, err := m.number(m.cpu, key)
	if err != nil {
		return u, err
	}
	u.CPU = time.Duration(n) * unit //nolint:gosec // centuries fit
	u.PIDs, err = m.number(m.pids, "")
	return u, err
}

// number reads the number behind key at the beginning of a line; usage_usec is cpu.stat's first.
func (m *Meter) number(f *os.File, key string) (uint64, error) {
	if f == nil {
		return 0, nil
	}
	var buf [512]byte
	n, err := unix.Pread(int(f.Fd()), buf[:], 0)
	if err != nil {
		return 0, fmt.Errorf("read meter: %w", err)
	}
	text := buf[:n]
	if key != "" {
		i := bytes.Index(text, []byte(key))
		if i < 0 {
			return 0, nil
		}
		text = text[i+len(key):]
	}
	if i := bytes.IndexByte(text, '\n'); i >= 0 {
		text = text[:i]
	}
	value, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read meter: %w", err)
	}
	return value, nil
}

// Close closes the files.
func (m *Meter) Close() {
	for _, f := range []*os.File{m.memory, m.cpu, m.pids} {
		if f != nil {
			f.Close()
		}
	}
}
