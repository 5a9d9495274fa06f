package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Entry is a way into the cgroup of one v1 hierarchy: a process of one thread that writes "0" to File moves itself there.
// Such a move waits for nobody. Moving somebody else's process (cgroup.procs) takes a lock that every fork and exit of the
// machine holds, and the first such move after a rest waits for all processors to let go of it, for milliseconds.
// Source: Linux 9a3284fad42f "cgroup: Optimize single thread migration", 5.5.
type Entry struct {
	File *os.File // owned by whoever opened it
	// Optional says that the process may go on if it can't enter: the hierarchy limits nothing.
	Optional bool
}

// entryFile takes single threads. Source: cgroup-v1/cgroups.rst, 2.2 Attaching processes.
const entryFile = "tasks"

// Entrance is how a process that is about to be cloned gets into a group without being moved by others.
type Entrance struct {
	Entries []Entry
	// Birthplace is the unified hierarchy's directory on hybrid hosts, to be cloned into (clone3 with CLONE_INTO_CGROUP,
	// Linux 5.7); nil if the group has none.
	Birthplace *os.File
}

// Close closes the files.
func (e *Entrance) Close() {
	if e == nil {
		return
	}
	for _, entry := range e.Entries {
		entry.File.Close()
	}
	e.Birthplace.Close() // nil has a Close, too
}

// Enter opens the group, or with b a branch of it, for a process that is about to be cloned; the caller closes the result.
// It is nil where processes have to be placed with Add: on pure v2, whose domains take no single threads and where a clone
// into a frozen cgroup does not return, and with the systemd driver.
func (g *Group) Enter(b *Branch) (*Entrance, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state.Unified || g.state.Driver != DriverFS {
		return nil, nil //nolint:nilnil // there is none
	}
	e := &Entrance{}
	branched := b == nil
	for _, dir := range g.dirs() {
		at := dir
		if b != nil && filepath.Dir(b.dir) == dir {
			at, branched = b.dir, true
		}
		if err := e.open(at, dir == g.state.Paths[""]); err != nil {
			if at == dir && g.isOptional(dir, err) {
				continue
			}
			e.Close()
			return nil, fmt.Errorf("enter cgroup %s: %w", at, err)
		}
		if n := len(e.Entries); n > 0 && dir == g.state.Paths["name=systemd"] {
			e.Entries[n-1].Optional = true
		}
	}
	if !branched {
		e.Close()
		return nil, fmt.Errorf("enter cgroup %s: %w: it is no branch of this group", b.dir, unix.EINVAL)
	}
	return e, nil
}

func (e *Entrance) open(dir string, unified bool) error {
	if !unified {
		fd, err := unix.Open(dir+"/"+entryFile, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		e.Entries = append(e.Entries, Entry{File: os.NewFile(uintptr(fd), dir)})
		return nil
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		unix.Close(fd)
		return errors.Join(err, unix.ENOTSUP)
	}
	e.Birthplace = os.NewFile(uintptr(fd), dir)
	return nil
}
