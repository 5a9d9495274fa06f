package safepath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tree makes a hostile root: a name that ends in "/" is a directory, "a -> b" a symlink, anything else a file that
// holds its own name. Beside the root lies a file that nothing may reach.
func tree(t testing.TB, entries ...string) *os.File {
	t.Helper()
	base := t.TempDir()
	if err := os.WriteFile(filepath.Join(base, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(base, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name, target, isLink := strings.Cut(e, " -> ")
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case isLink:
			err = os.Symlink(target, at)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(at, 0o755)
		default:
			err = os.WriteFile(at, []byte(name), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func hostileTree(t testing.TB) *os.File {
	t.Helper()
	return tree(t,
		"etc/passwd", "etc/resolv.conf -> ../run/resolv.conf", "run/resolv.conf", "var/run -> /run", "file",
		"up -> ../../../../secret", "abs -> /secret", "host -> /proc/self/root/secret", "dir/sub/", "dir/up -> ..",
		"loop -> loop", "ping -> pong", "pong -> ping", "dangling -> /nowhere/else", "etc/mtab -> /proc/mounts",
		"deep -> dir/sub/../../etc", "root -> /", "rootroot -> root/root/root", "dots -> ....", "self -> .",
		"viafile -> file/../etc/passwd", "secret-inside/x", "long -> "+strings.Repeat("./", 1500)+"etc",
	)
}

// identity reads what was opened: the content of a file, "dir:" and the path beneath the root otherwise.
func identity(t *testing.T, root, f *os.File) string {
	t.Helper()
	self, err := os.Readlink("/proc/self/fd/" + itoa(int(f.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	top, err := os.Readlink("/proc/self/fd/" + itoa(int(root.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	rest, inside := strings.CutPrefix(self, top)
	if !inside {
		t.Fatalf("opened %q, outside of %q", self, top)
	}
	if rest == "" {
		return "/"
	}
	return rest
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}

func TestOpenInRoot(t *testing.T) {
	root := hostileTree(t)
	for _, c := range []struct {
		path string
		want string // beneath the root
		err  error
	}{
		{path: "", want: "/"},
		{path: "/", want: "/"},
		{path: "///", want: "/"},
		{path: "..", want: "/"},
		{path: "/../../..", want: "/"},
		{path: "etc/passwd", want: "/etc/passwd"},
		{path: "//etc//passwd", want: "/etc/passwd"},
		{path: "/etc/../etc/./passwd", want: "/etc/passwd"},
		{path: "/etc/resolv.conf", want: "/run/resolv.conf"},
		{path: "/var/run/resolv.conf", want: "/run/resolv.conf"},
		{path: "/var/run/../etc/passwd", want: "/etc/passwd"},
		{path: "/up", err: unix.ENOENT},   // would be ../secret outside; inside, / has no such name
		{path: "/abs", err: unix.ENOENT},  // likewise
		{path: "/host", err: unix.ENOENT}, // the root has no proc of its own
		{path: "/root/root/etc/passwd", want: "/etc/passwd"},
		{path: "/rootroot/rootroot", want: "/"},
		{path: "/deep/passwd", want: "/etc/passwd"},
		{path: "/dir/up/up/up/etc/passwd", err: unix.ENOENT},
		{path: "/dir/up/etc/passwd", want: "/etc/passwd"},
		{path: "/self/self/file", want: "/file"},
		{path: "/long/passwd", want: "/etc/passwd"},
		{path: "/loop", err: unix.ELOOP},
		{path: "/ping/x", err: unix.ELOOP},
		{path: "/dangling", err: unix.ENOENT},
		{path: "/dots", err: unix.ENOENT},
		{path: "/file/x", err: unix.ENOTDIR},
		{path: "/file/..", err: unix.ENOTDIR},
		{path: "/viafile", err: unix.ENOTDIR},
		{path: "/etc\x00/passwd", err: unix.EINVAL},
		{path: "/" + strings.Repeat("a", 256), err: unix.ENAMETOOLONG},
		{path: strings.Repeat("a/", unix.PathMax), err: unix.ENAMETOOLONG},
	} {
		f, err := OpenInRoot(root, c.path, unix.O_PATH)
		if !errors.Is(err, c.err) || (c.err == nil && err != nil) {
			t.Errorf("OpenInRoot(%.40q): error %v, want %v", c.path, err, c.err)
		}
		if err != nil {
			continue
		}
		if got := identity(t, root, f); got != c.want {
			t.Errorf("OpenInRoot(%.40q) opened %q, want %q", c.path, got, c.want)
		}
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("OpenInRoot(%.40q): not close-on-exec (%v)", c.path, err)
		}
		f.Close()
	}
}

// Magic links lead wherever the kernel says, also out of the root: /proc/self/root, /proc/self/fd/N, /proc/self/cwd.
// Seen with RESOLVE_NO_MAGICLINKS removed: EXDEV, so that RESOLVE_IN_ROOT alone holds where they lead out.
func TestOpenInRootRefusesMagicLinks(t *testing.T) {
	proc, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	for _, path := range []string{
		"self/root", "self/root/etc", "self/cwd", "self/exe", "self/fd/0", "thread-self/fd/" + itoa(int(proc.Fd())), "self/ns/net",
	} {
		f, err := OpenInRoot(proc, path, unix.O_PATH)
		if !errors.Is(err, unix.ELOOP) {
			t.Errorf("OpenInRoot(/proc, %q): %v, want ELOOP", path, err)
		}
		if err == nil {
			f.Close()
		}
	}
}

func TestResolve(t *testing.T) {
	root := hostileTree(t)
	for _, c := range []struct {
		path, want string
		err        error
	}{
		{path: "", want: "/"},
		{path: "/..", want: "/"},
		{path: "/etc/passwd", want: "/etc/passwd"},
		{path: "/etc/resolv.conf", want: "/run/resolv.conf"},
		{path: "/var/run/docker.sock", want: "/run/docker.sock"},
		{path: "/up", want: "/secret"},
		{path: "/abs/x/y", want: "/secret/x/y"},
		{path: "/dangling", want: "/nowhere/else"},
		{path: "/dangling/../x", want: "/nowhere/x"},
		{path: "/deep/new", want: "/etc/new"},
		{path: "/rootroot/rootroot/x", want: "/x"},
		{path: "/dir/up/x", want: "/x"},
		{path: "/dir/up/../x", want: "/x"},
		{path: "/var/run/..", want: "/"},
		{path: "/not/../there", want: "/there"},
		{path: "/loop", err: unix.ELOOP},
		{path: "/ping/x", err: unix.ELOOP},
	} {
		got, err := Resolve(root, c.path)
		if !errors.Is(err, c.err) || (c.err == nil && err != nil) || got != c.want {
			t.Errorf("Resolve(%q) = %q, %v; want %q, %v", c.path, got, err, c.want, c.err)
		}
	}
}

// As many links as the kernel follows in one look-up, and one more.
func TestResolveCountsLinksAsTheKernelDoes(t *testing.T) {
	var entries []string
	name := "end"
	for i := range maxLinks + 1 {
		next := "l" + itoa(i+1)
		entries = append(entries, next+" -> "+name)
		name = next
	}
	root := tree(t, append(entries, "end")...)
	for i, wantErr := range map[int]bool{maxLinks: false, maxLinks + 1: true} {
		path := "/l" + itoa(i)
		f, openErr := OpenInRoot(root, path, unix.O_PATH)
		if openErr == nil {
			f.Close()
		}
		_, err := Resolve(root, path)
		if (err != nil) != wantErr || (openErr != nil) != wantErr {
			t.Errorf("%d links: Resolve says %v, the kernel %v", i, err, openErr)
		}
	}
}

// A lease that somebody holds makes open(2) answer EAGAIN for as long as it lasts: that must be an error, not a loop.
func TestOpenInRootEndsOnLease(t *testing.T) {
	root := tree(t, "leased")
	f, err := os.OpenFile(filepath.Join(root.Name(), "leased"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("probe file leases: " + err.Error())
	}
	done := make(chan error, 1)
	go func() {
		g, err := OpenInRoot(root, "leased", unix.O_RDONLY|unix.O_NONBLOCK)
		if err == nil {
			g.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, unix.EAGAIN) {
			t.Fatalf("got %v, want EAGAIN", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("still trying after 5 s")
	}
}

// An attacker renames a directory out of and back into the root while it is being walked with "..". Whatever is
// opened must be inside. Seen with RESOLVE_IN_ROOT removed: the secret.
func TestOpenInRootRacingRenames(t *testing.T) {
	root := tree(t, "a/b/c/", "a/b/link -> ../../../../secret")
	outside := filepath.Join(filepath.Dir(root.Name()), "moved")
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		inside := filepath.Join(root.Name(), "a/b")
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.Rename(inside, outside) //nolint:errcheck // losing the race is part of it
			os.Rename(outside, inside) //nolint:errcheck // likewise
		}
	}()
	end := time.Now().Add(300 * time.Millisecond)
	for time.Now().Before(end) {
		for _, path := range []string{"a/b/c/../../../secret", "a/b/c/../../../../secret", "a/b/link", "a/b/c/../link"} {
			f, err := OpenInRoot(root, path, unix.O_RDONLY)
			if err == nil {
				t.Errorf("OpenInRoot(%q) opened something", path)
				f.Close()
			}
		}
	}
	close(stop)
	<-stopped
}

// FuzzResolve compares Resolve with the kernel: where OpenInRoot finds something, Resolve must name it, by a path
// without symlinks.
func FuzzResolve(f *testing.F) {
	root := hostileTree(f)
	for _, seed := range []string{
		"/", "/etc/resolv.conf", "/dir/up/../x", "/var/run/../run", "a/../b", "/rootroot/deep/..", "/loop", "..//.././etc",
		"/dir/sub/../up/dir/up/etc/passwd", "\xff", "/self/./self/../self", "/long/../deep/passwd",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		got, rerr := Resolve(root, path)
		if rerr == nil && (!strings.HasPrefix(got, "/") || strings.Contains(got+"/", "/../")) {
			t.Fatalf("Resolve(%q) = %q, not a clean absolute path", path, got)
		}
		want, err := OpenInRoot(root, path, unix.O_PATH)
		if err != nil {
			return
		}
		defer want.Close()
		if rerr != nil {
			t.Fatalf("Resolve(%q): %v, but it can be opened", path, rerr)
		}
		same, err := openat2(root, got, unix.O_PATH|unix.O_NOFOLLOW, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			t.Fatalf("Resolve(%q) = %q: %v", path, got, err)
		}
		defer same.Close()
		var a, b unix.Stat_t
		if unix.Fstat(int(want.Fd()), &a) != nil || unix.Fstat(int(same.Fd()), &b) != nil || a.Ino != b.Ino || a.Dev != b.Dev {
			t.Fatalf("Resolve(%q) = %q, which is another file", path, got)
		}
	})
}
