package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inMountNamespace skips what needs to copy mounts, unless the caller may.
func needMounts(t *testing.T) {
	t.Helper()
	if fd, err := unix.OpenTree(unix.AT_FDCWD, "/dev", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC); err != nil {
		t.Skip("probe open_tree: " + err.Error())
	} else {
		unix.Close(fd)
	}
}

func openDir(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestOpenSource(t *testing.T) {
	needMounts(t)
	bundle := t.TempDir()
	for _, step := range []error{
		os.Mkdir(filepath.Join(bundle, "dir"), 0o700),
		os.WriteFile(filepath.Join(bundle, "file"), []byte("x"), 0o600),
		os.Symlink("dir", filepath.Join(bundle, "link")),
		os.Symlink("loop", filepath.Join(bundle, "loop")),
		os.Symlink("gone", filepath.Join(bundle, "dangling")),
		unix.Mkfifo(filepath.Join(bundle, "fifo"), 0o600),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	dir := openDir(t, bundle)
	for _, c := range []struct {
		source, path string
		kind         uint32
		err          error
	}{
		{"dir", bundle + "/dir", unix.S_IFDIR, nil},
		{"link", bundle + "/dir", unix.S_IFDIR, nil},
		{bundle + "/file", bundle + "/file", unix.S_IFREG, nil},
		{"fifo", bundle + "/fifo", unix.S_IFIFO, nil},
		{"/dev/null", "/dev/null", unix.S_IFCHR, nil},
		{"dir/../file", bundle + "/file", unix.S_IFREG, nil},
		{"missing", "", 0, unix.ENOENT},
		{"dangling", "", 0, unix.ENOENT},
		{"loop", "", 0, unix.ELOOP},
		{"file/x", "", 0, unix.ENOTDIR},
		{strings.Repeat("x/", unix.PathMax), "", 0, unix.ENAMETOOLONG},
	} {
		m := Mount{Source: c.source, Destination: "/there", Bind: true, Recursive: true}
		s, err := m.OpenSource(dir)
		if c.err != nil {
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), "/there") {
				t.Errorf("%.30q: error %v, want %v and the destination", c.source, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%.30q: %v", c.source, err)
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(c.path, &st); err != nil {
			t.Fatal(err)
		}
		if s.Path != c.path || s.Mode&unix.S_IFMT != c.kind || s.Ino != st.Ino || s.Dev != st.Dev || s.Rdev != st.Rdev {
			t.Errorf("%q: got %+v, want path %q, type %#o, inode %d of %#x", c.source, s, c.path, c.kind, st.Ino, st.Dev)
		}
		if s.IsDir() != (c.kind == unix.S_IFDIR) {
			t.Errorf("%q: IsDir %v", c.source, s.IsDir())
		}
		if flags, err := unix.FcntlInt(s.Tree.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%q: the tree is not close-on-exec (%v)", c.source, err)
		}
		s.Tree.Close()
	}
}

// What is judged is what is mounted: a source that is swapped while it is opened is either the one or the other in all
// that is said of it, or an error. Seen with the second look-up's comparison removed: a path of the one with the inode
// of the other.
func TestOpenSourceRacingSwap(t *testing.T) {
	needMounts(t)
	bundle := t.TempDir()
	inode := map[string]uint64{}
	for _, name := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(bundle, name), 0o700); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(bundle, name), &st); err != nil {
			t.Fatal(err)
		}
		inode[filepath.Join(bundle, name)] = st.Ino
	}
	link := filepath.Join(bundle, "link")
	swap := func(to string) {
		os.Remove(link + ".new")
		if err := os.Symlink(to, link+".new"); err != nil {
			t.Error(err)
		}
		if err := os.Rename(link+".new", link); err != nil {
			t.Error(err)
		}
	}
	swap("a")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				swap("b")
				swap("a")
			}
		}
	}()
	dir := openDir(t, bundle)
	opened := 0
	for range 2000 {
		m := Mount{Source: "link", Destination: "/there", Bind: true}
		s, err := m.OpenSource(dir)
		if errors.Is(err, unix.ESTALE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		opened++
		if inode[s.Path] != s.Ino {
			t.Errorf("path %q has inode %d, the tree %d", s.Path, inode[s.Path], s.Ino)
		}
		s.Tree.Close()
	}
	close(stop)
	<-stopped
	if opened == 0 {
		t.Error("never opened")
	}
}

func TestOpenRoot(t *testing.T) {
	needMounts(t)
	base := t.TempDir()
	for _, step := range []error{
		os.Mkdir(filepath.Join(base, "root"), 0o700),
		os.WriteFile(filepath.Join(base, "file"), nil, 0o600),
		os.Symlink("root", filepath.Join(base, "link")),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	for name, want := range map[string]error{"root": nil, "link": unix.ELOOP, "file": unix.ENOTDIR, "missing": unix.ENOENT} {
		path := filepath.Join(base, name)
		s, err := OpenRoot(path)
		if want != nil {
			if !errors.Is(err, want) || !strings.Contains(err.Error(), "root.path") {
				t.Errorf("%s: error %v, want %v and the field's name", name, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if s.Path != filepath.Join(base, "root") {
			t.Errorf("%s: path %q", name, s.Path)
		}
		s.Tree.Close()
	}
}

// CVE-2025-31133: /dev/null replaced by something that the image chose. Seen with the check of the device number
// removed: every one of these was accepted as the source of masks.
func TestOpenDeviceRefusesFakes(t *testing.T) {
	needMounts(t)
	base := t.TempDir()
	path := func(name string) string { return filepath.Join(base, name) }
	for _, step := range []error{
		os.WriteFile(path("file"), nil, 0o666),
		os.Mkdir(path("dir"), 0o700),
		os.Symlink("/dev/null", path("link")),
		os.Symlink("/proc/sysrq-trigger", path("elsewhere")),
		unix.Mkfifo(path("fifo"), 0o666),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	fakes := []string{"file", "dir", "link", "elsewhere", "fifo"}
	for name, dev := range map[string]struct{ mode, major, minor uint32 }{
		"zero": {unix.S_IFCHR, 1, 5}, "block": {unix.S_IFBLK, 1, 3}, "kmsg": {unix.S_IFCHR, 1, 11},
	} {
		if err := unix.Mknod(path(name), dev.mode|0o666, int(unix.Mkdev(dev.major, dev.minor))); err != nil {
			t.Skip("probe mknod: " + err.Error())
		}
		fakes = append(fakes, name)
	}
	for _, name := range fakes {
		f, err := OpenDevice(path(name), 1, 3)
		if !errors.Is(err, unix.ENODEV) {
			t.Errorf("%s: error %v, want ENODEV", name, err)
		}
		if err == nil {
			f.Close()
		}
	}
	if _, err := OpenDevice(path("missing"), 1, 3); !errors.Is(err, unix.ENOENT) {
		t.Errorf("missing: %v", err)
	}
	f, err := OpenDevice("/dev/null", 1, 3)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// Errors leave no descriptor behind.
func TestOpenLeaksNothing(t *testing.T) {
	needMounts(t)
	count := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	dir := openDir(t, t.TempDir())
	before := count()
	for range 20 {
		m := Mount{Source: "missing", Destination: "/x"}
		m.OpenSource(dir)             //nolint:errcheck // the error is not the point
		OpenRoot("/dev/null")         //nolint:errcheck // likewise
		OpenDevice("/dev/zero", 1, 3) //nolint:errcheck // likewise
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
