package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"sync"

	"github.com/opencontainers/cgroups"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// Options configure a Runtime.
type Options struct {
	// Root is the directory of container states; it is made if it is missing.
	Root string
	// SystemdCgroup lets systemd make the cgroups.
	SystemdCgroup bool
	// Rootless says that the caller is no root of the host's: cgroups are used where they are delegated to it, and a
	// container goes without where they are not, unless it asks for limits.
	Rootless bool
	// SpecIDs are the maps of this process's user namespace if specs name ids of the namespace above, as an ordinary
	// user's do who has entered one; nil takes them as they are.
	SpecIDs *IDs
	// Profile is the policy for new containers; nil is the host's default. What a spec asks for can tighten it.
	Profile *profiles.Profile
	// Enforcement is the host's word on Profile.
	Enforcement Enforcement
	// ConfigDir is the directory of the host's configuration; "" is [ConfigDir].
	ConfigDir string
	// LandlockBestEffort is the administrator's choice to go on where the kernel can't enforce a profile's file rules.
	LandlockBestEffort bool
	// CacheDir holds compiled filters; SeccompHelper is the program that compiles them.
	CacheDir, SeccompHelper string
	// Monitor is the program that supervises containers whose creator does not stay; see CreateOptions.Supervise.
	Monitor string
	// Gateway is the egress program; "" is the one beside this program.
	Gateway string
	// Handler is the name that Profile was found by, "" for none: the host's configuration says more of it.
	Handler string
	// Recorder is the program that records containers; "" is agentsafectl beside this program.
	Recorder string
	// RecordingsDir is where recordings go that have a name; "" is [RecordingsDir].
	RecordingsDir string
	// LayersDir holds the layers of workspaces; "" is layer.DefaultDir.
	LayersDir string
	// WarnLog is the file of warnings; "" is [WarnLog].
	WarnLog string
	// Warn gets what is worth a log line and no error; nil discards it.
	Warn func(message string)
}

// Runtime creates and finds the containers below one root directory. It is safe for concurrent use.
type Runtime struct {
	opts Options
	root *os.File
}

// Open returns a Runtime for the root directory, which it makes if it is missing. Close releases it.
func Open(o Options) (*Runtime, error) {
	if o.Root == "" {
		return nil, errors.New("open runtime: no root directory")
	}
	// 0700: CVE-2024-25621 was a state directory that others could enter.
	if err := os.MkdirAll(o.Root, 0o700); err != nil { //nolint:forbidigo // our own state, not a root file system
		return nil, fmt.Errorf("make root directory: %w", err)
	}
	root, err := os.OpenFile(o.Root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open root directory: %w", err)
	}
	if err := checkRoot(root); err != nil {
		root.Close()
		return nil, err
	}
	if o.ConfigDir == "" {
		o.ConfigDir = ConfigDir
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	return &Runtime{opts: o, root: root}, nil
}

// checkRoot refuses a state directory that somebody else owns or can write to: its files say which processes are
// signalled and which directories removed, and root must not believe an ordinary user in that
// (TestAttack_StateOfAnother).
func checkRoot(root *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return fmt.Errorf("stat root directory: %w", err)
	}
	const othersWrite = 0o022
	if int(st.Uid) != os.Geteuid() || st.Mode&othersWrite != 0 {
		return fmt.Errorf("root directory %s belongs to uid %d, mode %04o: want a directory of uid %d that nobody else can write to: %w",
			root.Name(), st.Uid, st.Mode&0o7777, os.Geteuid(), unix.EPERM)
	}
	return nil
}

// Close releases the root directory; containers are not affected.
func (r *Runtime) Close() { r.root.Close() }

// Container is one container, loaded or just created.
type Container struct {
	rt    *Runtime
	dir   *os.File
	id    string
	state *State
	// detail is read when it is first needed, see details.
	detail *Detail
	group  *cgroup.Group
	// finishing serialises FinishExec.
	finishing sync.Mutex
	// spaces are what a supervisor holds for transactions.
	spaces spaces
	child  *initproc.Child // of the creating process alone
	// attached says that this process holds the child's socket, because there is no start socket.
	attached bool
	// unattached says that nobody can have attached a network since the rules were installed.
	unattached bool
	// held says that the child waits at the start point meanwhile, and the details have been written.
	held bool
	// recorders are closed when the recorders that this process has started have ended.
	recorders []chan struct{}
	// supervisor is known once it was asked for.
	supervisor Supervisor
}

// ID returns the container's id.
func (c *Container) ID() string { return c.id }

// State returns what is known of the container; the caller must not change it.
func (c *Container) State() *State { return c.state }

// Owner returns who created the container: root, or a uid.
func (c *Container) Owner() string {
	var st unix.Stat_t
	if unix.Fstat(int(c.dir.Fd()), &st) != nil || st.Uid == 0 {
		return "root"
	}
	return strconv.FormatUint(uint64(st.Uid), 10)
}

// Close releases what the Container holds open; the container itself is not affected.
func (c *Container) Close() {
	c.dir.Close()
	c.spaces.cache.Close()
	if c.child != nil {
		c.child.Close()
	}
}

// Load finds a container. The error is ErrNotExist if there is none of this id.
func (r *Runtime) Load(id string) (*Container, error) {
	c, err := r.openDir(id)
	if err != nil {
		return nil, err
	}
	if c.state, err = readState(c.dir); err != nil {
		c.Close()
		return nil, unreadable(id, err)
	}
	return c, nil
}

// unreadable is what is said of a state directory whose state.json can't be read.
func unreadable(id string, err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("container %q was never completed (delete --force removes it): %w", id, ErrNotExist)
	}
	return fmt.Errorf("load container %q (delete --force removes it): %w", id, err)
}

func (r *Runtime) openDir(id string) (*Container, error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(r.root.Fd()), id, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("container %q: %w", id, ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("open state of container %q: %w", id, err)
	}
	return &Container{rt: r, id: id, dir: os.NewFile(uintptr(fd), filepath.Join(r.opts.Root, id))}, nil
}

// claim makes the state directory of a new container and locks it; whoever makes it owns the id.
func (r *Runtime) claim(id string) (*Container, error) {
	if err := ValidateID(id); err != nil {
		return nil, err
	}
	err := unix.Mkdirat(int(r.root.Fd()), id, 0o700)
	if errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("container %q: %w", id, ErrExist)
	}
	if err != nil {
		return nil, fmt.Errorf("make state directory of container %q: %w", id, err)
	}
	c, err := r.openDir(id)
	if err == nil {
		if err = c.lock(); err == nil {
			return c, nil
		}
		c.Close()
	}
	// Out of descriptors or memory: the id must not stay taken.
	unix.Unlinkat(int(r.root.Fd()), id, unix.AT_REMOVEDIR) //nolint:errcheck // the first error is the one to report
	return nil, err
}

// lock takes the container's lock until unlock or Close. A container that was deleted while waiting does not exist.
func (c *Container) lock() error {
	for {
		err := unix.Flock(int(c.dir.Fd()), unix.LOCK_EX)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("lock container %q: %w", c.id, err)
		}
		break
	}
	var st unix.Stat_t
	err := unix.Fstat(int(c.dir.Fd()), &st)
	if err == nil && st.Nlink > 0 {
		return nil
	}
	c.unlock()
	if err != nil { // not "gone": a delete would call it done
		return fmt.Errorf("look at the state of container %q: %w", c.id, err)
	}
	return fmt.Errorf("container %q: %w", c.id, ErrNotExist)
}

func (c *Container) unlock() {
	unix.Flock(int(c.dir.Fd()), unix.LOCK_UN) //nolint:errcheck // the kernel drops it with the descriptor in any case
}

// reload reads the state again, under the lock.
func (c *Container) reload() error {
	s, err := readState(c.dir)
	if err != nil {
		return unreadable(c.id, err)
	}
	c.state = s
	return nil
}

// List returns the ids of all containers, also of those whose creation was interrupted, sorted.
func (r *Runtime) List() ([]string, error) {
	dir, err := os.Open(r.opts.Root)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && ValidateID(e.Name()) == nil {
			ids = append(ids, e.Name())
		}
	}
	sort.Strings(ids)
	return ids, nil
}

// details reads detail.json once.
func (c *Container) details() (*Detail, error) {
	if c.detail == nil {
		var d Detail
		err := loadJSON(c.dir, detailFile, &d)
		if errors.Is(err, unix.ENOENT) {
			// It is the last file that create writes, and one of the first that delete removes.
			return nil, fmt.Errorf("container %q is being created or removed: %w", c.id, ErrNotRunning)
		}
		if err != nil {
			return nil, fmt.Errorf("load container %q: %w", c.id, err)
		}
		c.detail = &d
	}
	return c.detail, nil
}

// Process returns what an exec inherits from: the container's first process after hardening.
func (c *Container) Process() (*specs.Process, error) {
	d, err := c.details()
	if err != nil {
		return nil, err
	}
	return d.Process, nil
}

// cgroupGroup returns the container's cgroup, nil if it has none. It knows the resources in force only if it was made
// by this process; Update asks groupWithResources.
func (c *Container) cgroupGroup() (*cgroup.Group, error) {
	if c.group != nil || c.state == nil || c.state.Cgroup.Driver == "" {
		return c.group, nil
	}
	p := &c.state.Cgroup
	driver := p.Driver
	if driver == cgroup.DriverSystemd {
		if g, err := c.groupWithResources(); err == nil {
			return g, nil
		}
		// A crash before the details were written. The paths suffice to end and remove what is there; systemd forgets the
		// unit of an empty cgroup by itself.
		driver = cgroup.DriverFS
	}
	g, err := cgroup.Load(cgroup.State{
		Driver: driver, Unified: p.Unified, Paths: p.Paths, Late: p.Late,
		Cgroup: &cgroups.Cgroup{Resources: &cgroups.Resources{}},
	})
	if err != nil {
		return nil, fmt.Errorf("load cgroup of container %q: %w", c.id, err)
	}
	c.group = g
	return g, nil
}

func (c *Container) groupWithResources() (*cgroup.Group, error) {
	d, err := c.details()
	if err != nil {
		return nil, err
	}
	if d.Cgroup == nil {
		return nil, errNoCgroup()
	}
	if c.group, err = cgroup.Load(*d.Cgroup); err != nil {
		return nil, fmt.Errorf("load cgroup of container %q: %w", c.id, err)
	}
	return c.group, nil
}

func cgroupPaths(s *cgroup.State) CgroupPaths {
	return CgroupPaths{Driver: s.Driver, Unified: s.Unified, Paths: s.Paths, Late: s.Late}
}
