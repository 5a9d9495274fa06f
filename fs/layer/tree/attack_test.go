package tree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func temp(t *testing.T) (string, Root) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("probe root: whiteouts and trusted attributes need it")
	}
	dir, err := os.MkdirTemp("/var/tmp", "agentsafe-tree-") //nolint:usetesting // the usual one may be on an overlay or tmpfs
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return dir, NewRoot(f)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, dir, name, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
}

func ops(list []Change) string {
	var out []string
	for _, c := range list {
		out = append(out, fmt.Sprintf("%s %s %s", c.Op, c.Kind, c.Path))
	}
	return strings.Join(out, "; ")
}

// TestAttack_PlantedAttributes: attributes by which a file of a layer would stand for another one.
func TestAttack_PlantedAttributes(t *testing.T) {
	for _, c := range []struct{ name, value string }{
		{"trusted.overlay.redirect", "/etc"},
		{"trusted.overlay.metacopy", ""},
		{"trusted.overlay.whiteout", "y"},
		{"trusted.overlay.opaque", "x"},
		{"trusted.overlay.overlay.opaque", "y"},
	} {
		upper, root := temp(t)
		put(t, upper, "d/f", "x")
		must(t, unix.Setxattr(filepath.Join(upper, "d"), c.name, []byte(c.value), 0))
		if _, err := List(root, Root{}, ListOptions{}); !errors.Is(err, ErrHostile) {
			t.Errorf("%s=%q: %v", c.name, c.value, err)
		}
	}
}

// TestAttack_SymlinkParent: a directory of the destination is replaced by a symlink that leads out.
func TestAttack_SymlinkParent(t *testing.T) {
	outside, _ := temp(t)
	upper, src := temp(t)
	below, dst := temp(t)
	put(t, upper, "d/f", "evil")
	must(t, os.Symlink(outside, filepath.Join(below, "d")))
	var w Writer
	if err := w.Put(src, dst, "d/f"); err == nil {
		t.Error("a file was written through a symlink")
	}
	put(t, outside, "x", "safe")
	must(t, w.Remove(dst, "d/x")) // nothing is there: d is no directory
	if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
		t.Errorf("outside: %v %v", left, err)
	}
}

// TestAttack_SymlinkAtFile: the file itself is a symlink to a file outside.
func TestAttack_SymlinkAtFile(t *testing.T) {
	outside, _ := temp(t)
	put(t, outside, "victim", "safe")
	upper, src := temp(t)
	below, dst := temp(t)
	put(t, upper, "f", "evil")
	must(t, os.Symlink(filepath.Join(outside, "victim"), filepath.Join(below, "f")))
	var w Writer
	must(t, w.Put(src, dst, "f"))
	if data, err := os.ReadFile(filepath.Join(outside, "victim")); err != nil || string(data) != "safe" {
		t.Errorf("the file outside: %q %v", data, err)
	}
	if st, err := os.Lstat(filepath.Join(below, "f")); err != nil || !st.Mode().IsRegular() {
		t.Errorf("the destination: %v %v", st, err)
	}
}

// TestAttack_Names: whatever a file system takes as a name is a name and nothing else.
func TestAttack_Names(t *testing.T) {
	upper, src := temp(t)
	below, dst := temp(t)
	names := []string{"new\nline", "\x1b[2J", "...", " ", "-rf", "\xff\xfe", strings.Repeat("n", 255), "a\\b", "\u202egnp.exe", ".wh.x", "~", "*"}
	for _, n := range names {
		put(t, upper, n, n)
	}
	list, err := List(src, dst, ListOptions{})
	if err != nil || len(list) != len(names) {
		t.Fatalf("%v %v", list, err)
	}
	var w Writer
	for _, c := range list {
		must(t, w.Put(src, dst, c.Path))
	}
	for _, n := range names {
		if data, err := os.ReadFile(filepath.Join(below, n)); err != nil || string(data) != n {
			t.Errorf("%q: %q %v", n, data, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "a/..", "a//b/..", "x/."} {
		if err := w.Put(src, dst, bad); err == nil {
			t.Errorf("path %q was taken", bad)
		}
	}
}

// TestAttack_FIFO: reading a layer does not wait for a writer, and a plain writer refuses what is no file.
func TestAttack_FIFO(t *testing.T) {
	upper, src := temp(t)
	_, dst := temp(t)
	must(t, unix.Mkfifo(filepath.Join(upper, "p"), 0o666))
	must(t, unix.Mknod(filepath.Join(upper, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	list, err := List(src, dst, ListOptions{})
	must(t, err)
	if got := ops(list); got != "add device null; add fifo p" {
		t.Errorf("list: %s", got)
	}
	plain := Writer{Plain: true}
	for _, n := range []string{"p", "null"} {
		if err := plain.Put(src, dst, n); !errors.Is(err, ErrKind) {
			t.Errorf("%s: %v", n, err)
		}
		if _, err := src.OpenFile(n); err == nil {
			t.Errorf("%s was opened as a file", n)
		}
	}
}

// TestAttack_SetID: a plain writer leaves set-id bits and attributes out, and owns what it writes.
func TestAttack_SetID(t *testing.T) {
	upper, src := temp(t)
	below, dst := temp(t)
	put(t, upper, "f", "x")
	must(t, os.Chown(filepath.Join(upper, "f"), 4242, 4242))
	must(t, unix.Chmod(filepath.Join(upper, "f"), 0o6755))
	must(t, unix.Setxattr(filepath.Join(upper, "f"), "user.x", []byte("y"), 0))
	plain := Writer{Plain: true}
	must(t, plain.Put(src, dst, "f"))
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(below, "f"), &st))
	if st.Mode&0o7777 != 0o755 || st.Uid != 0 {
		t.Errorf("mode %o, owner %d", st.Mode, st.Uid)
	}
	if n, err := unix.Listxattr(filepath.Join(below, "f"), make([]byte, 100)); err != nil || n != 0 {
		t.Errorf("attributes: %d bytes, %v", n, err)
	}
	// One that keeps keeps.
	var w Writer
	must(t, w.Put(src, dst, "f"))
	must(t, unix.Stat(filepath.Join(below, "f"), &st))
	if st.Mode&0o7777 != 0o6755 || st.Uid != 4242 {
		t.Errorf("kept: mode %o, owner %d", st.Mode, st.Uid)
	}
}

// TestAttack_SparseTerabyte: holes are neither read nor written.
func TestAttack_SparseTerabyte(t *testing.T) {
	upper, src := temp(t)
	below, dst := temp(t)
	f, err := os.OpenFile(filepath.Join(upper, "big"), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o644)
	must(t, err)
	const size = 1 << 40
	must(t, f.Truncate(size))
	_, err = f.WriteAt([]byte("end"), size-3)
	must(t, err)
	f.Close()
	var w Writer
	must(t, w.Put(src, dst, "big"))
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(below, "big"), &st))
	if st.Size != size || st.Blocks*512 > 1<<20 {
		t.Errorf("copy: %d bytes, %d on disk", st.Size, st.Blocks*512)
	}
	list, err := List(src, dst, ListOptions{})
	if err != nil || len(list) != 0 {
		t.Errorf("the copy differs: %v %v", list, err)
	}
}

// TestAttack_DeepTree: a tree deeper than a path can name is refused, not followed.
func TestAttack_DeepTree(t *testing.T) {
	upper, src := temp(t)
	fd, err := unix.Open(upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	name := strings.Repeat("d", 200)
	for range 30 {
		must(t, unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	if _, err := List(src, Root{}, ListOptions{}); !errors.Is(err, ErrTooMuch) {
		t.Errorf("list: %v", err)
	}
	must(t, RemoveAll(src, nil)) // what is refused can be removed all the same
}

// TestAttack_MountInTree: what is mounted in a tree is not of it.
func TestAttack_MountInTree(t *testing.T) {
	_, src := temp(t)
	f, err := os.Open("/")
	must(t, err)
	defer f.Close()
	if _, err := NewRoot(f).OpenFile("proc/version"); !errors.Is(err, unix.EXDEV) {
		t.Errorf("a mount was crossed: %v", err)
	}
	if _, err := src.OpenFile("../etc/passwd"); err == nil {
		t.Error("the root was left")
	}
}

func TestHardLinksStayTogether(t *testing.T) {
	upper, src := temp(t)
	below, dst := temp(t)
	put(t, upper, "a", "x")
	must(t, os.Link(filepath.Join(upper, "a"), filepath.Join(upper, "b")))
	var w Writer
	must(t, w.Put(src, dst, "a"))
	must(t, w.Put(src, dst, "b"))
	var a, b unix.Stat_t
	must(t, unix.Stat(filepath.Join(below, "a"), &a))
	must(t, unix.Stat(filepath.Join(below, "b"), &b))
	if a.Ino != b.Ino {
		t.Error("a hard link became two files")
	}
}

// TestAttack_CaseCollisions: names that differ by case alone, or only to the eye, are different names.
func TestAttack_CaseCollisions(t *testing.T) {
	upper, src := temp(t)
	below, dst := temp(t)
	names := []string{"Makefile", "makefile", "MAKEFILE", "é", "e\u0301", "a", "\u0430", "a\u200b", "a.", "a "}
	for _, n := range names {
		put(t, upper, "d/"+n, n)
	}
	put(t, below, "d/Makefile", "old")
	list, err := List(src, dst, ListOptions{})
	if err != nil || len(list) != len(names) {
		t.Fatalf("%d changes of %d: %v", len(list), len(names), err)
	}
	for i := range list {
		must(t, new(Writer).Put(src, dst, list[i].Path))
	}
	for _, n := range names {
		if got, err := os.ReadFile(filepath.Join(below, "d", n)); err != nil || string(got) != n {
			t.Errorf("%q has %q: %v", n, got, err)
		}
	}
}

// TestAttack_ManyEmptyFiles: a tree of more entries than is read is refused, with one error and what is below the bound
// is listed; what is refused can be removed.
func TestAttack_ManyEmptyFiles(t *testing.T) {
	upper, src := temp(t)
	dirs, files := 20, 500
	if os.Getenv("AGENTSAFE_TEST_LONG") != "" {
		dirs, files = 100, 10_000 // a million
	}
	for d := range dirs {
		must(t, os.Mkdir(filepath.Join(upper, strings.Repeat("d", d+1)), 0o755))
		for f := range files {
			fd, err := unix.Open(fmt.Sprintf("%s/%s/%d", upper, strings.Repeat("d", d+1), f), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
			must(t, err)
			must(t, unix.Close(fd))
		}
	}
	list, err := List(src, Root{}, ListOptions{})
	if err != nil || len(list) != dirs*(files+1) {
		t.Errorf("%d changes: %v", len(list), err)
	}
	up, err := src.openDir("")
	must(t, err)
	defer up.Close()
	l := &lister{entries: MaxEntries - dirs*files} // as if so many had been read before
	if err := l.dir(up, nil, "", false); !errors.Is(err, ErrTooMuch) || len(l.out) > dirs*files {
		t.Errorf("a tree of more than %d entries: %v, %d listed", MaxEntries, err, len(l.out))
	}
	must(t, RemoveAll(src, nil))
}
