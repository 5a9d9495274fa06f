package layer

import (
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Cache keeps what layer.json says for a process that opens the layers of one container for every exec: reading it would
// cost more than what is done. It holds the file open, so that its number names no other file, and a file is never
// changed, only replaced; whoever else writes one makes the cache read it. The zero value is an empty one. Not for
// concurrent use; the lock of the layers sees to that, as what is in it is only looked at under it.
type Cache struct {
	file     *os.File
	dev, ino uint64
	state    *State
}

// Close forgets what is kept.
func (c *Cache) Close() {
	if c != nil && c.file != nil {
		go c.file.Close() // it may be the last name of a file that was replaced, and freeing that takes its time
		c.file, c.state = nil, nil
	}
}

// read returns the state if the file in the directory is the one that is kept; nil if it is not.
func (c *Cache) read(dir *os.File) *State {
	if c == nil || c.file == nil {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), stateFile, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != c.dev || st.Ino != c.ino {
		return nil
	}
	return c.state.clone()
}

// keep remembers the state that was written to the file in the directory just now.
func (c *Cache) keep(dir *os.File, s *State) {
	if c == nil {
		return
	}
	c.Close()
	fd, err := unix.Openat(int(dir.Fd()), stateFile, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return // whoever opens the layers next reads it
	}
	f := os.NewFile(uintptr(fd), stateFile)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		f.Close()
		return
	}
	c.file, c.dev, c.ino, c.state = f, st.Dev, st.Ino, s.clone()
}

// clone copies as deep as states are changed in place.
func (s *State) clone() *State {
	out := *s
	out.Workspaces = slices.Clone(s.Workspaces)
	out.Transactions = slices.Clone(s.Transactions)
	out.Checkpoints = slices.Clone(s.Checkpoints)
	out.Checks = slices.Clone(s.Checks)
	out.Promoted = maps.Clone(s.Promoted)
	return &out
}
