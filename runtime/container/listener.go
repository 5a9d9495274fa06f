package container

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// Listener is the process of the host's that answers the system calls for which the engine's filter says SCMP_ACT_NOTIFY.
// Source: runtime-spec 1.3.0, config-linux.md "Seccomp", listenerPath and listenerMetadata.
type Listener struct {
	Path     string `json:"path"` // of a listening unix stream socket
	Metadata string `json:"metadata,omitempty"`
	// Filter is the place of the engine's filter among those that are installed, Flags what it has besides the others'.
	Filter int    `json:"filter"`
	Flags  uint64 `json:"flags,omitempty"`
}

// planListener finds the filter whose calls go to a listener; nil if there is none. Ours may come before or behind it:
// the kernel takes the strictest answer, so that a listener never allows what the profile refuses.
func planListener(s *specs.LinuxSeccomp, filters []profiles.SeccompFilter) (*Listener, error) {
	i := slices.IndexFunc(filters, func(f profiles.SeccompFilter) bool { return f.Notifies("") })
	switch {
	case i < 0:
		return nil, nil //nolint:nilnil // no listener and no error
	case s == nil || s.ListenerPath == "":
		return nil, invalid("linux.seccomp.listenerPath", "missing: somebody has to answer SCMP_ACT_NOTIFY")
	case !filepath.IsAbs(s.ListenerPath):
		return nil, invalid("linux.seccomp.listenerPath", fmt.Sprintf("%q is not absolute", s.ListenerPath))
	}
	// The process sends the listener away under the filter: nobody could answer these calls yet.
	for _, name := range []string{"sendmsg", "fcntl"} {
		if filters[i].Notifies(name) {
			return nil, invalid("linux.seccomp", "SCMP_ACT_NOTIFY for "+name+": the process needs that call to hand the listener over")
		}
	}
	return &Listener{
		Path: s.ListenerPath, Metadata: s.ListenerMetadata, Filter: i, Flags: filters[i].Flags & unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
	}, nil
}

// donate connects to the listener for one process, which sends it the notification descriptor. The caller closes the
// result once the process has it.
func (l *Listener) donate(p *initproc.Process, don *initproc.Donation, state *specs.ContainerProcessState) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("linux.seccomp.listenerPath: %w", err)
	}
	conn := os.NewFile(uintptr(fd), "seccomp listener")
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: l.Path}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("linux.seccomp.listenerPath: connect to %s: %w", l.Path, err)
	}
	text, err := l.encode(state, 0)
	if err != nil {
		conn.Close()
		return nil, err
	}
	p.ListenerFD, p.ListenerFilter, p.ListenerFlags, p.ListenerBytes = don.Add(conn), l.Filter, l.Flags, len(text)
	return conn, nil
}

// encode writes what the listener is told of a process. Its length does not depend on the pid, which is known only when
// the process's program, which sends it, has been compiled.
func (l *Listener) encode(state *specs.ContainerProcessState, pid int) ([]byte, error) {
	const widest = 1<<31 - 1
	told := *state
	told.Fds, told.Metadata, told.Pid = []string{specs.SeccompFdName}, l.Metadata, widest
	longest, err := json.Marshal(&told)
	if err != nil {
		return nil, fmt.Errorf("encode state for the seccomp listener: %w", err)
	}
	told.Pid = pid
	text, err := json.Marshal(&told)
	if err != nil {
		return nil, fmt.Errorf("encode state for the seccomp listener: %w", err)
	}
	for len(text) < len(longest) {
		text = append(text, ' ')
	}
	return text, nil
}

// tell gives a child that has been told to go on what it is to send.
func (l *Listener) tell(child *initproc.Child, state *specs.ContainerProcessState) error {
	text, err := l.encode(state, child.PID)
	if err != nil {
		return err
	}
	return child.Tell(text)
}

// processState is what a listener is told; the pid is added when it is known.
func (c *Container) processState(status Status) *specs.ContainerProcessState {
	state := *c.ociState(status)
	if status == StatusCreating {
		state.Pid = 0 // it is the process itself
	}
	return &specs.ContainerProcessState{Version: c.state.OCIVersion, State: state}
}
