package layer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// DefaultDir is where layers live.
const DefaultDir = "/var/lib/agentsafe/layers"

// DefaultExpiry is how long layers stay after their container is gone.
const DefaultExpiry = 24 * time.Hour

// ErrNotExist says that there are no layers of that container.
var ErrNotExist = errors.New("no layers of this container")

// Layers are the layers of one container, open and locked. Close them.
type Layers struct {
	*State
	// Merge resolves conflicts of texts in a promotion; nil leaves them.
	Merge Merge
	// Flagged lets the paths of a promotion cover what is flagged below them, which has to be named otherwise.
	Flagged bool

	path  string
	dir   *os.File
	views map[string]*os.File
	disks map[string]*os.File
	stuck error
	// older are the transactions of history.json as it has them, by number; nil if it was not read.
	older map[int]Transaction
	// notes are the transactions whose notes and marks count: layer.json has none of them, or has them as open.
	notes map[int]bool
	cache *Cache // nil for none
}

// Create makes the directory of a container's layers below store (a path, which is made if it is missing), open and
// locked. What an earlier container of the same id left is moved aside under a name with its time.
func Create(store, id string) (*Layers, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(store, 0o700); err != nil { //nolint:forbidigo // our own state, not a root file system
		return nil, fmt.Errorf("make directory of layers: %w", err)
	}
	path := filepath.Join(store, id)
	err := unix.Mkdir(path, 0o700)
	if errors.Is(err, unix.EEXIST) {
		if err = setAside(store, id); err == nil {
			err = unix.Mkdir(path, 0o700)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make directory of layers of container %q: %w", id, err)
	}
	l, err := openDir(path)
	if err != nil {
		return nil, err
	}
	l.State = &State{Version: stateVersion, ID: id, Created: time.Now().UTC(), Boot: bootID()}
	if err := l.makeDir(nil, "t"); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// setAside renames the layers of a container that is gone, so that they can still be promoted until they expire.
func setAside(store, id string) error {
	old, err := Open(store, id)
	if err != nil {
		// Never completed, or not readable: nothing in it was ever shown to a container.
		return discard(filepath.Join(store, id))
	}
	defer old.Close()
	if old.alive() {
		return fmt.Errorf("layers of container %q are in use: %w", id, unix.EBUSY)
	}
	if old.Ended.IsZero() {
		old.Ended = time.Now().UTC()
		if err := old.save(); err != nil {
			return err
		}
	}
	name := id + "@" + old.Created.Format("20060102T150405.000000000")
	return unix.Rename(filepath.Join(store, id), filepath.Join(store, name))
}

func checkID(id string) error {
	if id == "" || id == "." || id == ".." || strings.ContainsAny(id, "/\x00") || len(id) > 1024 {
		return fmt.Errorf("container id %q: %w", id, unix.EINVAL)
	}
	return nil
}

// Open opens and locks the layers of a container, and completes what a crash interrupted; if that is not possible, Stuck
// says why. The error is ErrNotExist if there are none.
func Open(store, id string) (*Layers, error) {
	l, err := OpenRecent(store, id)
	if err != nil {
		return nil, err
	}
	if err := l.loadHistory(); err != nil {
		l.Close()
		return nil, fmt.Errorf("layers of container %q: %w", id, err)
	}
	return l, nil
}

// OpenRecent is Open for those who begin and end transactions: of those that were decided on long ago, Transactions has
// none, and their number costs nothing.
func OpenRecent(store, id string) (*Layers, error) { return OpenCached(store, id, nil) }

// OpenCached is OpenRecent with a cache, which stays the caller's; nil for none.
func OpenCached(store, id string, cache *Cache) (*Layers, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	l, err := openDir(filepath.Join(store, id))
	if err != nil {
		return nil, err
	}
	l.cache = cache
	if l.State = cache.read(l.dir); l.State == nil {
		if l.State, err = readState(l.dir); err == nil {
			cache.keep(l.dir, l.State)
		}
	}
	if err != nil {
		l.Close()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("container %q: %w", id, ErrNotExist)
		}
		return nil, fmt.Errorf("layers of container %q: %w", id, err)
	}
	if err := l.loadNotes(); err != nil {
		l.Close()
		return nil, fmt.Errorf("layers of container %q: %w", id, err)
	}
	if p := l.Pending; p != nil {
		err := l.loadHistory()
		if err == nil {
			err = l.recover()
		}
		if err != nil {
			l.stuck = fmt.Errorf("the layers of container %q can't be changed until an interrupted %s is completed: %w", id, p.Op, err)
		}
	}
	return l, nil
}

func openDir(path string) (*Layers, error) {
	dir, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("container %q: %w", filepath.Base(path), ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("open layers: %w", err)
	}
	if err := checkOwner(dir); err != nil {
		dir.Close()
		return nil, err
	}
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX)
		if err == nil {
			return &Layers{dir: dir, path: path}, nil
		}
		if !errors.Is(err, unix.EINTR) {
			dir.Close()
			return nil, fmt.Errorf("lock layers: %w", err)
		}
	}
}

// checkOwner refuses layers that somebody else has made: what they say of the host's folders would be believed
// (TestAttack_LayersOfAnother).
func checkOwner(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("stat layers: %w", err)
	}
	const others = 0o077
	if int(st.Uid) != os.Geteuid() || st.Mode&others != 0 {
		return fmt.Errorf("layers %s belong to uid %d, mode %04o: want uid %d and nobody else: %w",
			dir.Name(), st.Uid, st.Mode&0o7777, os.Geteuid(), unix.EPERM)
	}
	return nil
}

// Close unlocks the layers.
func (l *Layers) Close() {
	for _, f := range l.views {
		f.Close()
	}
	for _, f := range l.disks {
		f.Close()
	}
	l.dir.Close()
}

func (l *Layers) save() error {
	s := *l.State
	s.Transactions = l.recent()
	if err := writeFile(l.dir, stateFile, &s); err != nil {
		return err
	}
	l.cache.keep(l.dir, &s)
	return nil
}

// makeDir makes a directory of a workspace, or with nil of the container; it may exist.
func (l *Layers) makeDir(w *Workspace, name string) error {
	base, err := l.base(w)
	if err != nil {
		return err
	}
	err = unix.Mkdirat(int(base.Fd()), name, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make directory %s of layer: %w", name, err)
	}
	return nil
}

// makeDirs makes a directory of the container, and one of the same name in each image.
func (l *Layers) makeDirs(name string) error {
	err := l.makeDir(nil, name)
	for i := range l.Workspaces {
		if w := &l.Workspaces[i]; err == nil && w.Quota != (Quota{}) {
			err = l.makeDir(w, name)
		}
	}
	return err
}

// removeDirs removes what makeDirs made.
func (l *Layers) removeDirs(name string) error {
	err := l.removeDir(nil, name)
	for i := range l.Workspaces {
		if w := &l.Workspaces[i]; err == nil && w.Quota != (Quota{}) {
			err = l.removeDir(w, name)
		}
	}
	return err
}

// renameDirs renames what makeDirs made.
func (l *Layers) renameDirs(from, to string) error {
	var err error
	for i := range l.Workspaces {
		if w := &l.Workspaces[i]; err == nil && w.Quota != (Quota{}) {
			var base *os.File
			if base, err = l.base(w); err == nil {
				err = unix.Renameat(int(base.Fd()), from, int(base.Fd()), to)
			}
		}
	}
	if err == nil { // last: with this name the transaction has begun
		err = unix.Renameat(int(l.dir.Fd()), from, int(l.dir.Fd()), to)
	}
	if err != nil {
		return fmt.Errorf("name directory %s of layer: %w", to, err)
	}
	return nil
}

// stat looks at a directory of a workspace.
func (l *Layers) stat(w *Workspace, name string, st *unix.Stat_t) error {
	base, err := l.base(w)
	if err != nil {
		return err
	}
	if err := unix.Fstatat(int(base.Fd()), name, st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("stat %s of layer: %w", name, err)
	}
	return nil
}

// emptyDir removes what is in a directory of a workspace, or makes it.
func (l *Layers) emptyDir(w *Workspace, name string) error {
	f, err := l.open(w, name)
	if errors.Is(err, unix.ENOENT) {
		return l.makeDir(w, name)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := tree.RemoveAll(tree.NewRoot(f), nil); err != nil {
		return fmt.Errorf("empty %s of layer: %w", name, err)
	}
	return nil
}

// removeDir removes a directory of a workspace, or with nil of the container, with all that is in it.
func (l *Layers) removeDir(w *Workspace, name string) error {
	f, err := l.open(w, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	err = tree.RemoveAll(tree.NewRoot(f), nil)
	f.Close()
	if err != nil {
		return fmt.Errorf("remove %s of layer: %w", name, err)
	}
	base, err := l.base(w)
	if err != nil {
		return err
	}
	if err := unix.Unlinkat(int(base.Fd()), name, unix.AT_REMOVEDIR); err != nil {
		return fmt.Errorf("remove %s of layer: %w", name, err)
	}
	return nil
}

// open opens a directory of a workspace, or with nil of the container. The caller owns it.
func (l *Layers) open(w *Workspace, name string) (*os.File, error) {
	base, err := l.base(w)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(base.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s of layer: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Directories of a workspace, beneath the container's or in an image of its own.
func upperDir(w *Workspace) string                  { return w.Name + "/upper" }
func workDir(w *Workspace) string                   { return w.Name + "/work" }
func upperIn(dir string, w *Workspace) string       { return dir + "/" + w.Name + "/upper" }
func workIn(dir string, w *Workspace) string        { return dir + "/" + w.Name + "/work" }
func txDir(n int) string                            { return "t/" + strconv.Itoa(n) }
func txUpper(n int, w *Workspace) string            { return upperIn(txDir(n), w) }
func undoIn(dir string, w *Workspace) string        { return dir + "/" + w.Name + "/undo" }
func txUndo(n int, w *Workspace) string             { return undoIn(txDir(n), w) }
func checkpointDir(name string) string              { return "c-" + name }
func checkpointUpper(n string, w *Workspace) string { return checkpointDir(n) + "/" + w.Name }

// Info is one line of List.
type Info struct {
	ID           string    `json:"id"`
	Container    string    `json:"container"`
	Created      time.Time `json:"created"`
	Ended        time.Time `json:"ended,omitzero"`
	Running      bool      `json:"running"`
	Keep         bool      `json:"keep"`
	Transactions int       `json:"transactions"`
	Workspaces   []string  `json:"workspaces"`
}

// List returns the layers below store, oldest first.
func List(store string) ([]Info, error) {
	entries, err := os.ReadDir(store)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list layers: %w", err)
	}
	var out []Info
	for _, e := range entries {
		l := &Layers{path: filepath.Join(store, e.Name())}
		if l.dir, err = os.Open(l.path); err != nil {
			continue // removed meanwhile
		}
		if l.State, err = readState(l.dir); err == nil {
			err = errors.Join(l.loadNotes(), l.loadHistory())
		}
		l.Close()
		if err != nil {
			continue // being made
		}
		info := Info{
			ID: e.Name(), Container: l.ID, Created: l.Created, Ended: l.Ended, Running: l.alive(), Keep: l.Keep,
			Transactions: len(l.Transactions),
		}
		for i := range l.Workspaces {
			w := &l.Workspaces[i]
			text := w.Source + " on " + w.Destination
			if w.InMemory() {
				text += ", in memory"
			}
			info.Workspaces = append(info.Workspaces, text)
		}
		out = append(out, info)
	}
	slices.SortStableFunc(out, func(a, b Info) int { return a.Created.Compare(b.Created) })
	return out, nil
}

// Expire removes the layers of containers that have been gone for longer than age and that nobody pinned. It returns
// what it removed. told is as with Remove, for each of them.
func Expire(store string, age time.Duration, told func(files int)) ([]string, error) {
	list, err := List(store)
	if err == nil {
		err = removeLeft(store, told)
	}
	if err != nil {
		return nil, err
	}
	var removed []string
	for _, info := range list {
		if info.Running || info.Keep || info.Ended.IsZero() || time.Since(info.Ended) < age {
			continue
		}
		if err := Remove(store, info.ID, told); err != nil {
			return removed, err
		}
		removed = append(removed, info.ID)
	}
	return removed, nil
}

// SetKeep pins or unpins the layers.
func (l *Layers) SetKeep(keep bool) error {
	l.Keep = keep
	return l.save()
}

// End notes that the container is gone.
func (l *Layers) End() error {
	l.Ended, l.InitPID = time.Now().UTC(), 0
	return errors.Join(l.save(), l.removeDirs(Ready))
}

// alive reports whether the container's first process still exists.
func (l *Layers) alive() bool {
	return l.InitPID > 0 && !l.Torn() && sameProcess(l.InitPID, l.InitStart)
}

// bootID names the present run of the kernel.
func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// Torn reports whether the machine went down while the container ran, so that the last seconds of its writes may be
// missing: files of the layer may be short or empty.
func (s *State) Torn() bool { return s.Ended.IsZero() && s.Boot != bootID() }

// sameProcess reports whether pid is the process that started at the given tick, and not one that got its number.
func sameProcess(pid int, start uint64) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The name in parentheses may hold anything.
	_, rest, ok := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
	fields := strings.Fields(rest)
	const stateField, startField = 0, 19 // 3 and 22 of proc(5)
	if !ok || len(fields) <= startField || fields[stateField] == "Z" || fields[stateField] == "X" {
		return false
	}
	got, err := strconv.ParseUint(fields[startField], 10, 64)
	return err == nil && got == start
}
