package layer

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
	"github.com/agentsafe/agentsafe/fs/safepath"
)

// WorkspaceOptions say what AddWorkspace makes.
type WorkspaceOptions struct {
	Path        string   // the real path of the folder on the host
	Destination string   // in the container
	Nested      []string // mount points of the container beneath Destination
	Quota       Quota
	Memory      bool // the layers lie in memory, and Quota says in how much
	Copy        CopyOptions
}

// AddWorkspace lays an overlay over a folder of the host and returns it as a detached mount, which the caller owns.
// source is the open folder, of the caller's mount namespace. With a quota the layers of the workspace lie in a file
// system of their own. The state is not saved: the caller saves once, when the container's first process is known.
func (l *Layers) AddWorkspace(source *os.File, o WorkspaceOptions) (*os.File, error) {
	path := o.Path
	if err := CheckLower(path); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat workspace %q: %w", path, err)
	}
	w := Workspace{
		Name: "w" + strconv.Itoa(len(l.Workspaces)), Destination: o.Destination, Source: path, Dev: st.Dev, Ino: st.Ino,
		Nested: o.Nested, Quota: o.Quota,
	}
	if err := l.makeDir(nil, w.Name); err != nil {
		return nil, err
	}
	if w.Quota != (Quota{}) || o.Memory {
		provide := l.makeDisk
		if o.Memory {
			provide = l.makeMemory
		}
		if err := provide(&w); err != nil {
			return nil, fmt.Errorf("workspace %q: %w", path, err)
		}
	}
	for _, d := range []string{"t", w.Name, upperDir(&w), workDir(&w)} {
		if err := l.makeDir(&w, d); err != nil {
			return nil, err
		}
	}
	upper, err := l.open(&w, upperDir(&w))
	if err != nil {
		return nil, err
	}
	defer upper.Close()
	// The root of the view is the upper directory itself.
	if err := likeDir(upper, &st); err != nil {
		return nil, err
	}
	if w.Since, err = clock(upper); err != nil {
		return nil, err
	}
	merged, err := l.overlayOrCopy(&w, source, &o.Copy)
	if err != nil {
		return nil, fmt.Errorf("workspace %q: %w", path, err)
	}
	var root unix.Stat_t
	if err := unix.Fstat(int(merged.Fd()), &root); err != nil {
		merged.Close()
		return nil, fmt.Errorf("stat overlay of workspace %q: %w", path, err)
	}
	w.MergedDev = root.Dev
	l.Workspaces = append(l.Workspaces, w)
	return merged, nil
}

// overlayOrCopy lays the overlay over the folder or, where that can't be and the profile says so, over a copy of it.
func (l *Layers) overlayOrCopy(w *Workspace, source *os.File, o *CopyOptions) (*os.File, error) {
	s := &stack{w: w, host: source, upper: upperDir(w), work: workDir(w)}
	cause := o.Need
	if cause == nil {
		merged, err := l.overlay(s)
		if err == nil {
			return merged, nil
		}
		cause = explainLower(err, source)
	}
	if o.UpTo <= 0 {
		return nil, cause
	}
	if err := l.copyLower(w, source, o, cause); err != nil {
		return nil, err
	}
	lower, err := l.lower(w)
	if err != nil {
		return nil, err
	}
	defer lower.Close()
	s.host = lower
	if err := l.clearVolatile(w); err != nil { // the attempt has left it
		return nil, err
	}
	return l.overlay(s)
}

// Started notes the container's first process and saves the state.
func (l *Layers) Started(pid int, start uint64) error {
	l.InitPID, l.InitStart = pid, start
	l.Ended, l.Boot = time.Time{}, bootID() // of one that is continued they are the earlier run's
	return l.save()
}

// likeDir gives a directory the owner and mode of another one.
func likeDir(dir *os.File, st *unix.Stat_t) error {
	if err := unix.Fchown(int(dir.Fd()), int(st.Uid), int(st.Gid)); err != nil {
		return fmt.Errorf("set owner of layer: %w", err)
	}
	if err := unix.Fchmod(int(dir.Fd()), st.Mode&0o7777); err != nil {
		return fmt.Errorf("set mode of layer: %w", err)
	}
	return nil
}

// clock returns the file system's present time: that of a change made just now.
func clock(dir *os.File) (int64, error) {
	var st unix.Stat_t
	if err := unix.Futimes(int(dir.Fd()), nil); err != nil {
		return 0, fmt.Errorf("read clock of the file system: %w", err)
	}
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return 0, fmt.Errorf("read clock of the file system: %w", err)
	}
	return st.Ctim.Nano(), nil
}

// OnOverlay reports whether a folder lies on an overlay.
func OnOverlay(dir *os.File) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return false, fmt.Errorf("stat the file system of %q: %w", dir.Name(), err)
	}
	return st.Type == unix.OVERLAYFS_SUPER_MAGIC, nil
}

func explainLower(err error, source *os.File) error {
	if on, serr := OnOverlay(source); serr == nil && on {
		return fmt.Errorf("the folder lies on overlays itself, and the kernel stacks two at most "+
			"(the workspace mode direct goes without one): %w", err)
	}
	return fmt.Errorf("the folder can't be overlaid, or the directory of layers can't hold an overlay's upper directory "+
		"(the workspace mode direct goes without): %w", err)
}

// CheckLower refuses a folder that an overlay would not show as it is: one with mounts beneath it. path is real and
// absolute.
func CheckLower(path string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("look for mounts beneath %q: %w", path, err)
	}
	prefix := strings.TrimSuffix(path, "/") + "/"
	for line := range strings.Lines(string(data)) {
		const pointField = 4
		fields := strings.Fields(line)
		if len(fields) > pointField && strings.HasPrefix(unescapeMount(fields[pointField]), prefix) {
			return fmt.Errorf("workspace %q: %q is mounted beneath it, and an overlay shows no mounts of the folder below: "+
				"bind it separately, or use the workspace mode direct: %w", path, unescapeMount(fields[pointField]), unix.EXDEV)
		}
	}
	return nil
}

// unescapeMount undoes the octal escapes of mountinfo. Source: proc(5).
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// host opens the workspace's folder on the host, if it is still the one that the layer lies on.
func (w *Workspace) host() (*os.File, error) {
	f, err := os.OpenFile(w.Source, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the host's folder: %w", err)
	}
	if err := w.isSource(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// isSource reports, by an error, that dir is not the folder that the layer lies on.
func (w *Workspace) isSource(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil || st.Dev != w.Dev || st.Ino != w.Ino {
		return fmt.Errorf("the folder %q is not the one that the task saw: it was replaced since: %w", w.Source, unix.ESTALE)
	}
	return nil
}

// view opens the merged view of a workspace: the running container's own, or a new overlay once it is gone. It stays
// open until the layers are closed.
func (l *Layers) view(w *Workspace) (tree.Root, error) {
	if f := l.views[w.Name]; f != nil {
		return tree.NewRoot(f), nil
	}
	f, err := l.openView(w)
	if err != nil {
		return tree.Root{}, err
	}
	if l.views == nil {
		l.views = map[string]*os.File{}
	}
	l.views[w.Name] = f
	return tree.NewRoot(f), nil
}

func (l *Layers) openView(w *Workspace) (*os.File, error) {
	if l.alive() {
		return l.liveView(w)
	}
	host, err := l.lower(w)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	if err := l.clearVolatile(w); err != nil {
		return nil, err
	}
	f, err := l.overlay(&stack{w: w, host: host, upper: upperDir(w), work: workDir(w)})
	if err != nil {
		return nil, fmt.Errorf("workspace %q: %w", w.Destination, err)
	}
	defer f.Close()
	return reopen(f) // a mount's descriptor is O_PATH
}

// clearVolatile removes the mark that a volatile overlay leaves, so that it is not mounted again after a crash of the
// machine: State.Boot tells that. Source: overlayfs.rst, "Volatile mount".
func (l *Layers) clearVolatile(w *Workspace) error {
	return l.removeDir(w, filepath.Join(workDir(w), "work", "incompat"))
}

func reopen(f *os.File) (*os.File, error) {
	fd, err := unix.Openat(int(f.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open view: %w", err)
	}
	return os.NewFile(uintptr(fd), "view"), nil
}

// liveView opens the overlay where the container has it. A task can rename directories above a mount point, so what is
// found must be the mount that was made.
func (l *Layers) liveView(w *Workspace) (*os.File, error) {
	root, err := os.OpenFile("/proc/"+strconv.Itoa(l.InitPID)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open root of container: %w", err)
	}
	defer root.Close()
	f, err := safepath.OpenInRoot(root, w.Destination, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open workspace %q in the container: %w", w.Destination, err)
	}
	if err := w.IsView(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// IsView reports, by an error, that dir is not the root of the workspace's overlay.
func (w *Workspace) IsView(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("stat workspace %q: %w", w.Destination, err)
	}
	if st.Dev != w.MergedDev {
		return fmt.Errorf("what is at %q in the container is not the workspace's overlay: %w", w.Destination, unix.ESTALE)
	}
	return nil
}

// upper opens an upper directory of a workspace.
func (l *Layers) upper(w *Workspace, name string) (tree.Root, func(), error) {
	f, err := l.open(w, name)
	if err != nil {
		return tree.Root{}, func() {}, err
	}
	return tree.NewRoot(f), func() { f.Close() }, nil
}
