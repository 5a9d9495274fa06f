package container

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// within fails the test if f does not end in time: on a FIFO, a device, an endless file.
func within(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatal("it does not end")
	}
}

// An image's passwd file is hostile. In doubt the answer is "/", and it comes at once.
func TestHomeDirectory(t *testing.T) {
	const line = "app:x:1000:1000::/home/app:/bin/sh\n"
	text := func(s string) func(string) error {
		return func(passwd string) error { return os.WriteFile(passwd, []byte(s), 0o600) }
	}
	for name, c := range map[string]struct {
		make func(passwd string) error
		want string
	}{
		"good":             {text("root:x:0:0::/root:/bin/sh\n" + line), "/home/app"},
		"no newline":       {text(strings.TrimSpace(line)), "/home/app"},
		"first wins":       {text("a:x:1000:0::/a:\n" + line), "/a"},
		"missing":          {func(string) error { return nil }, "/"},
		"empty":            {text(""), "/"},
		"not listed":       {text("root:x:0:0::/root:/bin/sh\n"), "/"},
		"a name like a id": {text("1000:x:0:0::/evil:/bin/sh\n"), "/"},
		"leading zero":     {text("a:x:01000:0::/evil:\n"), "/"},
		"relative":         {text("a:x:1000:0::evil:\n"), "/"},
		"empty home":       {text("a:x:1000:0:::\n"), "/"},
		"short line":       {text("a:x:1000:0\n"), "/"},
		"NUL":              {text("a:x:1000:0::/a\x00b:\n"), "/"},
		"long line":        {text("a:x:1:0::" + strings.Repeat("/a", 1<<20) + ":\n" + line), "/"},
		"fifo":             {func(p string) error { return unix.Mkfifo(p, 0o600) }, "/"},
		"directory":        {func(p string) error { return os.Mkdir(p, 0o700) }, "/"},
		"symlink": {func(p string) error {
			return errors.Join(os.Symlink("../other", p), text(line)(filepath.Dir(filepath.Dir(p))+"/other"))
		}, "/home/app"},
		"symlink out":  {func(p string) error { return os.Symlink("../../../../../../../etc/passwd", p) }, "/"},
		"absolute out": {func(p string) error { return os.Symlink("/proc/self/root/etc/passwd", p) }, "/"},
		"loop":         {func(p string) error { return os.Symlink("passwd", p) }, "/"},
		"device": {func(p string) error {
			if err := unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
				return os.Symlink("/dev/zero", p)
			}
			return nil
		}, "/"},
		"1 GiB sparse": {func(p string) error { return errors.Join(text("")(p), os.Truncate(p, 1<<30)) }, "/"},
		"behind 4 MiB": {text(strings.Repeat("x:x:1:1::/x:\n", 400000) + line), "/"},
	} {
		t.Run(name, func(t *testing.T) {
			root := openTemp(t)
			if err := os.Mkdir(filepath.Join(root.Name(), "etc"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := c.make(filepath.Join(root.Name(), "etc/passwd")); err != nil {
				t.Fatal(err)
			}
			within(t, 3*time.Second, func() {
				if got := homeDirectory(root, 1000); got != c.want {
					t.Errorf("got %.60q, want %q", got, c.want)
				}
			})
		})
	}
}

func TestEnvironmentAddsHome(t *testing.T) {
	root := openTemp(t)
	for _, c := range []struct{ in, want []string }{
		{nil, []string{"HOME=/"}},
		{[]string{"HOME=/x"}, []string{"HOME=/x"}},
		{[]string{"A=1", "HOME="}, []string{"A=1", "HOME=/"}},
		{[]string{"XHOME=/x"}, []string{"XHOME=/x", "HOME=/"}},
	} {
		if got := environment(&specs.Process{Env: c.in}, root); strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("%q became %q, want %q", c.in, got, c.want)
		}
	}
}

// FuzzHomeDirectory: whatever the file holds, the answer is an absolute path without NUL or line feed.
func FuzzHomeDirectory(f *testing.F) {
	for _, s := range []string{"root:x:0:0:root:/root:/bin/sh\n", ":::::", "a:x:0:0::/\r\n", "\xff:x:0:0::/\xff:", strings.Repeat(":", 1000)} {
		f.Add([]byte(s), uint32(0))
	}
	root := openTemp(f)
	if err := os.Mkdir(filepath.Join(root.Name(), "etc"), 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte, uid uint32) {
		if err := os.WriteFile(filepath.Join(root.Name(), "etc/passwd"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if home := homeDirectory(root, uid); !strings.HasPrefix(home, "/") || strings.ContainsAny(home, "\x00\n") {
			t.Fatalf("home %q", home)
		}
	})
}

func TestNameServers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "resolv.conf")
	for text, want := range map[string]string{
		"":                                             "",
		"nameserver 192.0.2.1\n":                       "192.0.2.1",
		"nameserver\t192.0.2.1 x\nsearch a\n":          "192.0.2.1",
		"#nameserver 192.0.2.1\n; nameserver 1":        "",
		"nameserver x\nnameserver 192.0.2.300":         "",
		"nameserver 192.0.2.1\nnameserver 2001:db8::1": "192.0.2.1 2001:db8::1",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		servers, err := nameServers(path)
		var got []string
		for _, a := range servers {
			got = append(got, a.String())
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(fifo, os.O_RDWR, 0) // somebody who writes nothing and does not go
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	for _, odd := range []string{fifo, "/dev/zero", dir, ""} {
		within(t, 3*time.Second, func() {
			if got, err := nameServers(odd); err != nil || len(got) != 0 {
				t.Errorf("%q: %v, %v", odd, got, err)
			}
		})
	}
	if _, err := nameServers(filepath.Join(dir, "gone")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("missing file: %v", err)
	}
}

func TestLoadJSONRefusesOddFiles(t *testing.T) {
	dir := openTemp(t)
	at := func(name string) string { return filepath.Join(dir.Name(), name) }
	for name, step := range map[string]error{
		"fifo": unix.Mkfifo(at("fifo"), 0o600), "dir": os.Mkdir(at("dir"), 0o700), "zero": os.Symlink("/dev/zero", at("zero")),
		"loop": os.Symlink("loop", at("loop")), "huge": errors.Join(os.WriteFile(at("huge"), nil, 0o600), os.Truncate(at("huge"), 1<<40)),
		"empty": os.WriteFile(at("empty"), nil, 0o600), "half": os.WriteFile(at("half"), []byte(`{"a":`), 0o600),
		"two": os.WriteFile(at("two"), []byte(`{} {}`), 0o600), "type": os.WriteFile(at("type"), []byte("{\n\"version\": \"x\"}"), 0o600), "gone": nil,
	} {
		if step != nil {
			t.Fatal(step)
		}
		within(t, 3*time.Second, func() {
			var s State
			err := loadJSON(dir, name, &s)
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
			if name == "type" && !strings.Contains(err.Error(), "line 2") {
				t.Errorf("%s: the error does not name the line: %v", name, err)
			}
		})
	}
}

func testRuntime(t *testing.T) *Runtime {
	t.Helper()
	r, err := Open(Options{Root: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// A state directory that a crash or a hand has damaged: an error that says what helps, and delete --force removes it.
func TestDamagedState(t *testing.T) {
	good, err := json.Marshal(&State{Version: stateVersion, ID: "x", OCIVersion: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, text string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600) }
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		load   bool // can be loaded all the same
	}{
		"empty directory": {func(string) error { return nil }, false},
		"empty":           {file(stateFile, ""), false},
		"half":            {file(stateFile, string(good[:len(good)/2])), false},
		"not JSON":        {file(stateFile, "\x00\x00\x00"), false},
		"another version": {file(stateFile, `{"version":2,"id":"x"}`), false},
		"no version":      {file(stateFile, `{"id":"x"}`), false},
		"a stale draft": {func(dir string) error {
			return errors.Join(file("."+stateFile+".tmp", "half")(dir), file(stateFile, string(good))(dir))
		}, true},
		"only a draft": {file("."+stateFile+".tmp", "half"), false},
		"stray files":  {func(dir string) error { return errors.Join(file("core", "x")(dir), file(stateFile, string(good))(dir)) }, true},
		"a fifo":       {func(dir string) error { return unix.Mkfifo(filepath.Join(dir, stateFile), 0o600) }, false},
		"damaged detail": {func(dir string) error {
			return errors.Join(file(stateFile, string(good))(dir), file(detailFile, "{")(dir))
		}, true},
		// A crash under the systemd driver before detail.json is there.
		"systemd, no detail": {file(stateFile, `{"version":1,"id":"x","cgroup":{"driver":"systemd","paths":{"memory":"/sys/fs/cgroup/memory/agentsafe-test/nowhere"}}}`), true},
		"a dead init":        {file(stateFile, `{"version":1,"id":"x","initPid":1,"initStart":1}`), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := testRuntime(t)
			dir := filepath.Join(r.opts.Root, "x")
			if err := errors.Join(os.Mkdir(dir, 0o700), c.damage(dir)); err != nil {
				t.Fatal(err)
			}
			within(t, 15*time.Second, func() {
				l, err := r.Load("x")
				if (err == nil) != c.load {
					t.Errorf("load: %v", err)
				}
				if err != nil && !strings.Contains(err.Error(), "delete --force") {
					t.Errorf("load does not say what helps: %v", err)
				}
				if l != nil {
					l.Close()
				}
				if err := r.Delete(context.Background(), "x", true); err != nil {
					t.Errorf("delete --force: %v", err)
				}
			})
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the directory is still there: %v", err)
			}
		})
	}
}

// A full disk: an error, and the id is free.
func TestCreateDiskFull(t *testing.T) {
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=16k,mode=700"); err != nil {
		t.Skip("probe mount tmpfs: " + err.Error())
	}
	defer unix.Unmount(mount, unix.MNT_DETACH)
	if err := os.WriteFile(filepath.Join(mount, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	r, err := Open(Options{Root: mount})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Create(context.Background(), &CreateOptions{ID: "x", Spec: goodSpec(), Bundle: t.TempDir()}); err == nil {
		t.Error("created")
	}
	if ids, err := r.List(); err != nil || len(ids) != 0 {
		t.Errorf("left: %v, %v", ids, err)
	}
}

// An id is claimed once, whoever is quicker, and is free again after a failure.
func TestClaimIsExclusive(t *testing.T) {
	r := testRuntime(t)
	var won int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			c, err := r.claim("x")
			if err != nil {
				if !errors.Is(err, ErrExist) {
					t.Error(err)
				}
				return
			}
			mu.Lock()
			won++
			mu.Unlock()
			c.unlock()
			c.Close()
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d winners", won)
	}
	for name, o := range map[string]*CreateOptions{
		"no bundle": {ID: "y", Bundle: "/nonexistent"}, "no config": {ID: "y", Bundle: t.TempDir()}, "bad spec": {ID: "y", Bundle: t.TempDir(), Spec: &specs.Spec{}},
	} {
		if _, err := r.Create(context.Background(), o); err == nil {
			t.Errorf("%s: created", name)
		}
		if _, err := os.Stat(filepath.Join(r.opts.Root, "y")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the id is still taken", name)
		}
	}
}

// The state directory is nobody's but root's (CVE-2024-25621).
func TestStateModes(t *testing.T) {
	r := testRuntime(t)
	c, err := r.claim("x")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := writeState(c.dir, &State{}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{"": 0o700, "x": 0o700, "x/" + stateFile: 0o600} {
		st, err := os.Stat(filepath.Join(r.opts.Root, path))
		if err != nil || st.Mode().Perm() != want {
			t.Errorf("%q: mode %v, %v; want %v", path, st.Mode(), err, want)
		}
	}
}
