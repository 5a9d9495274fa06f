package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// networkOrigins has a line for each command that a gateway may hear of: which of them made a connection is told by the
// cgroup of its socket.
const networkOrigins = "network.origins"

// socketGroup is the id of the container's cgroup in the cgroup2 hierarchy, which sockets remember; 0 without one.
func (c *Container) socketGroup() uint64 {
	g, err := c.cgroupGroup()
	if err != nil || g == nil {
		return 0
	}
	return cgroupID(g.UnifiedDir())
}

// cgroupID returns the id of a directory of the cgroup2 hierarchy; 0 if it is none.
func cgroupID(dir string) uint64 {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if dir == "" || unix.Statfs(dir, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC || unix.Stat(dir, &st) != nil {
		return 0
	}
	return st.Ino
}

// noteInit writes down whose the connections of the container's first process are, and opens what the gateway asks about
// sockets with; none where the host has no cgroup2 for the container. The caller closes it.
func (c *Container) noteInit(ns *os.File) ([]*os.File, error) {
	group := c.socketGroup()
	if group == 0 {
		return nil, nil
	}
	if err := appendOrigin(c.dir, &wire.Origin{Cgroup: group, Container: c.id, Exec: wire.FirstProcess}); err != nil {
		return nil, err
	}
	return netns.OpenSocketDiag(ns)
}

// openOrigins opens the container's own file for reading.
func (c *Container) openOrigins() (*os.File, error) {
	fd, err := unix.Openat(int(c.dir.Fd()), networkOrigins, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", networkOrigins, err)
	}
	return os.NewFile(uintptr(fd), networkOrigins), nil
}

// tellsExecs says that a process that joins gets a cgroup of its own for the gateway's log.
func (c *Container) tellsExecs(o *ExecOptions) bool {
	return c.state.Network == netns.ModeGateway && o.program == "" && len(o.Cgroups) == 0
}

// noteExec writes down a process that has not run yet.
func (c *Container) noteExec(o *ExecOptions, p *Process) error {
	if p.cgroup == nil || c.state.Network != netns.ModeGateway {
		return nil
	}
	return c.noteOrigin(cgroupID(p.cgroup.Dir()), o.ID, p.Branch())
}

// noteOrigin tells the gateway that serves the container, which may be another one's of its pod, of a group.
func (c *Container) noteOrigin(group uint64, exec, branch string) error {
	record, err := c.gatewayRecord()
	if group == 0 || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("tell the gateway of a process: %w", err)
	}
	dir := c.dir
	if record.Owner != "" {
		owner, err := c.rt.openDir(record.Owner)
		if errors.Is(err, ErrNotExist) {
			return nil // it is gone, and its gateway with it
		}
		if err != nil {
			return fmt.Errorf("tell the gateway of a process: %w", err)
		}
		defer owner.Close()
		dir = owner.dir
	}
	return appendOrigin(dir, &wire.Origin{Cgroup: group, Container: c.id, Exec: exec, Branch: branch})
}

// appendOrigin adds a line. One write is one line, whoever else writes.
func appendOrigin(dir *os.File, o *wire.Origin) error {
	line, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode origin: %w", err)
	}
	fd, err := unix.Openat(int(dir.Fd()), networkOrigins, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("open %s: %w", networkOrigins, err)
	}
	f := os.NewFile(uintptr(fd), networkOrigins)
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write %s: %w", networkOrigins, err)
	}
	return nil
}
