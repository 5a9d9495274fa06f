package cgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/cgroups/systemd"
	"golang.org/x/sys/unix"
)

// Group is a container's set of cgroups: one directory on v2, one per hierarchy on v1. Its methods may be called from
// several goroutines; its zero value is not usable.
type Group struct {
	mu      sync.Mutex
	state   State
	manager cgroups.Manager // the library's; owns the resources in force
	unit    bool            // systemd driver, unit not started yet
}

// Open returns the Group of cfg without creating anything: to clean up after a process that died between Create and
// writing its state.
func Open(cfg *Config) (*Group, error) { return newGroup(cfg.State) }

// Load returns the Group of a state that was written by another process. It refuses paths that are not below a cgroup
// mount: a damaged state file must not make Destroy remove directories elsewhere.
func Load(s State) (*Group, error) {
	if s.Cgroup == nil || s.Cgroup.Resources == nil {
		return nil, errors.New("load cgroup state: no configuration in it")
	}
	if s.Driver != DriverFS && s.Driver != DriverSystemd {
		return nil, fmt.Errorf("load cgroup state: driver %q", s.Driver)
	}
	if len(s.Paths) == 0 {
		return nil, errors.New("load cgroup state: no paths in it")
	}
	for _, paths := range []map[string]string{s.Paths, s.Late} {
		for _, path := range paths {
			if err := checkStatePath(s.Unified, path); err != nil {
				return nil, fmt.Errorf("load cgroup state: %w", err)
			}
		}
	}
	return newGroup(s)
}

func checkStatePath(unified bool, path string) error {
	below, ok := strings.CutPrefix(path, mountRoot+"/")
	if !ok || filepath.Clean(path) != path {
		return fmt.Errorf("path %q is not below %s", path, mountRoot)
	}
	if !unified && !strings.Contains(below, "/") {
		return fmt.Errorf("path %q is the root of a hierarchy", path)
	}
	return nil
}

func newGroup(s State) (*Group, error) {
	useOwnDeviceRules()
	cg := *s.Cgroup
	resources := *cg.Resources
	cg.Resources = &resources
	s.Cgroup = &cg
	s.Paths, s.Late = maps.Clone(s.Paths), maps.Clone(s.Late)
	g := &Group{state: s}
	return g, g.setManager()
}

// setManager makes the library's manager for the paths of the state. With the paths given it makes no system call.
func (g *Group) setManager() error {
	cg, paths := g.state.Cgroup, g.state.Paths
	var err error
	switch {
	case g.state.Driver == DriverSystemd && !systemd.IsRunningSystemd():
		err = fmt.Errorf("%w: systemd is not running", ErrUnsupported)
	case g.state.Driver == DriverSystemd && g.state.Unified:
		g.manager, err = systemd.NewUnifiedManager(cg, paths[""])
	case g.state.Driver == DriverSystemd:
		g.manager, err = systemd.NewLegacyManager(cg, maps.Clone(paths))
	case g.state.Unified:
		g.manager, err = fs2.NewManager(cg, paths[""])
	default:
		g.manager, err = fs.NewManager(cg, maps.Clone(paths))
	}
	if err != nil {
		return fmt.Errorf("open cgroup manager: %w", err)
	}
	if g.state.Unified {
		g.state.Paths = g.manager.GetPaths() // rootless systemd: known only now
	}
	return nil
}

// State returns what Load needs. With the systemd driver it is complete after the first Add.
func (g *Group) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.state
	s.Paths, s.Late = maps.Clone(s.Paths), maps.Clone(s.Late)
	cg := *s.Cgroup
	resources := *cg.Resources
	cg.Resources = &resources
	s.Cgroup = &cg
	return s
}

// Path returns the directory of a controller ("memory"; on v2 the argument is ignored), or "" if the group has none.
func (g *Group) Path(controller string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.path(controller)
}

func (g *Group) path(controller string) string {
	if g.state.Unified {
		controller = ""
	}
	return g.state.Paths[controller]
}

// Dir opens the cgroup's directory for clone3(CLONE_INTO_CGROUP); the caller closes it. It returns ErrUnsupported on v1,
// and with the systemd driver before the unit exists: there processes are placed with Add.
func (g *Group) Dir() (*os.File, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.state.Unified {
		return nil, fmt.Errorf("open cgroup for clone: %w: cgroup v1", ErrUnsupported)
	}
	if g.unit {
		return nil, fmt.Errorf("open cgroup for clone: %w: the systemd unit starts with its first process", ErrUnsupported)
	}
	path := g.path("")
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Add moves a process with all its threads into the group. It returns when the process is in every hierarchy. With the
// systemd driver the first Add starts the unit and applies the limits.
func (g *Group) Add(pid int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if pid <= 0 {
		return fmt.Errorf("add process %d to cgroup: %w", pid, unix.EINVAL)
	}
	if g.unit {
		return g.startUnit(pid)
	}
	if g.state.Driver == DriverSystemd {
		if err := g.manager.AddPid("", pid); err != nil {
			return fmt.Errorf("add process %d to cgroup: %w", pid, err)
		}
		return nil
	}
	for _, dir := range g.dirs() {
		if err := placeProcess(dir, pid); err != nil && !g.isOptional(dir, err) {
			return fmt.Errorf("add process %d to cgroup %s: %w", pid, dir, err)
		}
	}
	return nil
}

// AddExec is Add for a process that joins a running container. sub names sub-cgroups of the container's by controller,
// "" standing for all (runc's exec --cgroup); nil is none. If the container is a systemd that moved itself into a
// sub-cgroup, a v2 cgroup takes no processes any more: then the new one joins that of initPID.
func (g *Group) AddExec(pid, initPID int, sub map[string]string) error {
	for _, path := range sub {
		if slices.Contains(strings.Split(path, "/"), "..") {
			return fmt.Errorf(`add process to sub-cgroup %q: %w: ".." in it`, path, unix.EINVAL)
		}
	}
	if len(sub) == 0 {
		err := g.Add(pid)
		if errors.Is(err, unix.EBUSY) && g.state.Unified {
			return g.addBeside(pid, initPID, err)
		}
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for controller, dir := range g.state.Paths {
		path, ok := sub[controller]
		if !ok {
			path = sub[""]
		}
		if err := placeProcess(filepath.Join(dir, path), pid); err != nil && !g.isOptional(dir, err) {
			return fmt.Errorf("add process %d to cgroup %s: %w", pid, filepath.Join(dir, path), err)
		}
	}
	return nil
}

// addBeside puts pid into the cgroup of initPID if that is below this group's.
func (g *Group) addBeside(pid, initPID int, cause error) error {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(initPID) + "/cgroup")
	if err != nil {
		return cause
	}
	for line := range strings.Lines(string(data)) {
		path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok {
			continue
		}
		dir := filepath.Join(mountRoot, path)
		if !strings.HasPrefix(dir, g.Path("")+"/") {
			return cause
		}
		if err := placeProcess(dir, pid); err != nil {
			return fmt.Errorf("add process %d to cgroup %s: %w", pid, dir, err)
		}
		return nil
	}
	return cause
}

// isOptional says whether a failure to join dir may pass: the hybrid unified hierarchy and name=systemd limit nothing.
func (g *Group) isOptional(dir string, err error) bool {
	if g.state.Unified || errors.Is(err, unix.ESRCH) {
		return false
	}
	return dir == g.state.Paths[""] || dir == g.state.Paths["name=systemd"]
}

// placeProcess writes pid to cgroup.procs. EINVAL is what a task answers that is not completely forked yet.
func placeProcess(dir string, pid int) error {
	fd, err := unix.Open(dir+"/"+cgroups.CgroupProcesses, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	text := strconv.AppendInt(nil, int64(pid), 10)
	for delay := time.Millisecond; ; delay *= 2 {
		_, err := unix.Write(fd, text)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if !errors.Is(err, unix.EINVAL) || delay > 64*time.Millisecond {
			return err
		}
		time.Sleep(delay)
	}
}

// dirs returns the group's directories, each once, in an order that is the same in every process.
func (g *Group) dirs() []string {
	return slices.Compact(slices.Sorted(maps.Values(g.state.Paths)))
}

// Exists says whether any of the group's cgroups exists.
func (g *Group) Exists() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.dirs(), exists)
}

func exists(path string) bool { return unix.Access(path, unix.F_OK) == nil }

// PIDs returns the processes of the group, in the caller's PID namespace; with recursive also those of sub-cgroups that
// the container made. A group that is gone has none.
func (g *Group) PIDs(recursive bool) ([]int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pids(recursive)
}

func (g *Group) pids(recursive bool) ([]int, error) {
	dir := g.mainDir()
	pids, err := readPIDs(dir, recursive)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", dir, err)
	}
	return pids, nil
}

func readPIDs(dir string, recursive bool) ([]int, error) {
	if recursive && hasSubdirs(dir) {
		return cgroups.GetAllPids(dir)
	}
	return cgroups.GetPids(dir)
}

// hasSubdirs uses that kernfs counts them in the link count; reading a cgroup directory costs ten times that.
func hasSubdirs(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Nlink > 2
}

// mainDir returns the directory that answers which processes belong to the group. On v1 a container with a writable
// cgroup file system may arrange sub-cgroups differently in each hierarchy, but can't leave its own tree in any.
func (g *Group) mainDir() string {
	if g.state.Unified {
		return g.state.Paths[""]
	}
	for _, c := range []string{"freezer", "devices", "pids", "memory", "cpu", "name=systemd", ""} {
		if dir := g.state.Paths[c]; dir != "" {
			return dir
		}
	}
	return ""
}
