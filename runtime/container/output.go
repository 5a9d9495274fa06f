package container

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// Output is a stream of a process that goes through the container's supervisor, which counts it: a pipe that the process
// writes to, and what its engine wants it written to. Both files are the Output's.
type Output struct {
	Name     string // stdout or stderr
	From, To *os.File
}

// Close releases both files.
func (o *Output) Close() {
	o.From.Close()
	o.To.Close()
}

func closeOutputs(list []Output) {
	for i := range list {
		list[i].Close()
	}
}

// countsOutput reports whether a profile bounds what processes write.
func countsOutput(p *profiles.Profile) bool { return !p.Unrestricted && p.Limits.OutputBytes > 0 }

// interpose puts a pipe in front of each of the streams that somebody reads, in place. The pipes belong to uid and gid,
// so that the process can open them again by name. The caller closes the writing ends and the outputs, also if there is an
// error beside them.
func interpose(p *profiles.Profile, terminal bool, uid, gid int, streams ...**os.File) (outs []Output, ends []*os.File, err error) {
	if !countsOutput(p) {
		return nil, nil, nil
	}
	if terminal {
		return nil, nil, fmt.Errorf("limits.outputBytes of profile %q: what is written to a terminal can't be counted (run it without one, or set the limit back)", p.Name)
	}
	names := [...]string{"standard output", "standard error"}
	for i, f := range streams {
		if *f == nil || isNull(*f) {
			continue
		}
		to, err := unix.FcntlInt((*f).Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return outs, ends, fmt.Errorf("duplicate %s: %w", names[i], err)
		}
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			unix.Close(to)
			return outs, ends, fmt.Errorf("create pipe for %s: %w", names[i], err)
		}
		r, w := os.NewFile(uintptr(fds[0]), names[i]), os.NewFile(uintptr(fds[1]), names[i])
		outs = append(outs, Output{names[i], r, os.NewFile(uintptr(to), names[i])})
		ends = append(ends, w)
		if err := unix.Fchown(fds[1], uid, gid); err != nil {
			return outs, ends, fmt.Errorf("own pipe for %s: %w", names[i], err)
		}
		*f = w
	}
	return outs, ends, nil
}

func isNull(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}

// hostID is the id on the host of one in a container with these mappings; without any, or outside of them, it is the same.
func hostID(id uint32, maps []specs.LinuxIDMapping) int {
	for _, m := range maps {
		if id >= m.ContainerID && id-m.ContainerID < m.Size {
			return int(m.HostID) + int(id-m.ContainerID)
		}
	}
	return int(id)
}

// idMappings reads the mappings of a process, "uid" or "gid"; nil if they can't be read.
func idMappings(pid int, kind string) []specs.LinuxIDMapping {
	f, err := os.Open(fmt.Sprintf("/proc/%d/%s_map", pid, kind))
	if err != nil {
		return nil
	}
	defer f.Close()
	var out []specs.LinuxIDMapping
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var m specs.LinuxIDMapping
		if _, err := fmt.Fscan(strings.NewReader(lines.Text()), &m.ContainerID, &m.HostID, &m.Size); err == nil {
			out = append(out, m)
		}
	}
	return out
}

// pumpInit hands the first process's streams to the supervisor, once that is in charge.
func (cr *creation) pumpInit() error {
	if len(cr.outputs) == 0 {
		return nil
	}
	s, err := cr.c.Supervisor()
	if err != nil {
		return err
	}
	return s.Pump(0, cr.outputs)
}

// interposeExec puts pipes in front of an exec's streams, in a copy of its options. The caller closes ends and outputs,
// also if there is an error beside them.
func (c *Container) interposeExec(o *ExecOptions, process *specs.Process, d *Detail) (*ExecOptions, []Output, []*os.File, error) {
	if !countsOutput(d.Policy.Profile) || o.program != "" {
		return o, nil, nil, nil
	}
	var uids, gids []specs.LinuxIDMapping
	if c.state.UserNS {
		uids, gids = idMappings(c.state.InitPID, "uid"), idMappings(c.state.InitPID, "gid")
	}
	counted := *o
	u := &process.User
	outs, ends, err := interpose(d.Policy.Profile, process.Terminal, hostID(u.UID, uids), hostID(u.GID, gids), &counted.Stdout, &counted.Stderr)
	return &counted, outs, ends, err
}
