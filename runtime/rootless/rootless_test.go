package rootless

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseSubIDs(t *testing.T) {
	const text = "# a comment\nalice:100000:65536\n1000:300000:10\nbob:1:1\nalice:x:1\nalice:5:0\nalice:4294967295:1\nalice:1:4294967295\nalice:7\n:1:1\n"
	for _, tc := range []struct {
		name string
		uid  int
		want []Range
	}{
		{"alice", 1000, []Range{{100000, 65536}, {300000, 10}}},
		{"bob", 1001, []Range{{1, 1}}},
		{"", 1000, []Range{{300000, 10}}},
		{"", 1, nil},
	} {
		if got := ParseSubIDs(text, tc.name, tc.uid); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%q, %d: %v, want %v", tc.name, tc.uid, got, tc.want)
		}
	}
}

func TestMaps(t *testing.T) {
	m := PlanMap(1000, []Range{{100000, 65536}, {1, 2000}, {300000, 10}})
	want := Map{{ContainerID: 0, HostID: 1000, Size: 1}, {ContainerID: 1, HostID: 100000, Size: 65536}, {ContainerID: 65537, HostID: 300000, Size: 10}}
	if !reflect.DeepEqual(m, want) {
		t.Fatalf("a range with the user's own id is left out: %v, want %v", m, want)
	}
	if m.Size() != 65547 {
		t.Errorf("size %d", m.Size())
	}
	in := func(c, h, n int) syscall.SysProcIDMap {
		return syscall.SysProcIDMap{ContainerID: c, HostID: h, Size: n}
	}
	for _, tc := range []struct {
		ask, want []syscall.SysProcIDMap
	}{
		{[]syscall.SysProcIDMap{in(0, 1000, 1)}, []syscall.SysProcIDMap{in(0, 0, 1)}},
		{[]syscall.SysProcIDMap{in(0, 1000, 1), in(1, 100000, 65536)}, []syscall.SysProcIDMap{in(0, 0, 1), in(1, 1, 65536)}},
		{[]syscall.SysProcIDMap{in(5, 300009, 1)}, []syscall.SysProcIDMap{in(5, 65546, 1)}},
		{[]syscall.SysProcIDMap{in(0, 100000, 65537)}, nil}, // one more than there are
		{[]syscall.SysProcIDMap{in(0, 0, 1)}, nil},
		{[]syscall.SysProcIDMap{in(0, 1000, 2)}, nil},
	} {
		got, err := m.Inside(tc.ask)
		if (err == nil) != (tc.want != nil) || err == nil && !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%v: %v, %v; want %v", tc.ask, got, err, tc.want)
		}
		if tc.want == nil && !errors.Is(err, unix.EPERM) {
			t.Errorf("%v: %v", tc.ask, err)
		}
	}
	// A range that is two lines of the map.
	split := Map{in(0, 10, 5), in(5, 15, 5)}
	if got, err := split.Inside([]syscall.SysProcIDMap{in(0, 12, 6)}); err != nil || !reflect.DeepEqual(got, []syscall.SysProcIDMap{in(0, 2, 3), in(3, 5, 3)}) {
		t.Errorf("split: %v, %v", got, err)
	}
	if out, ok := m.Outside(65546); !ok || out != 300009 {
		t.Errorf("outside: %d, %v", out, ok)
	}
}

func TestDirs(t *testing.T) {
	private := t.TempDir()
	must(t, os.Chmod(private, 0o700))
	t.Setenv("XDG_RUNTIME_DIR", private)
	if dir, err := StateDir(); err != nil || dir != filepath.Join(private, "agentsafe") {
		t.Errorf("state: %q, %v", dir, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(private, link))
	open := t.TempDir()
	must(t, os.Chmod(open, 0o777))
	other := t.TempDir()
	must(t, os.Chown(other, 4242, 4242))
	for _, bad := range []string{link, open, other, "relative", filepath.Join(private, "none")} {
		t.Setenv("XDG_RUNTIME_DIR", bad)
		if dir, err := StateDir(); err == nil {
			t.Errorf("XDG_RUNTIME_DIR=%s: %q", bad, dir)
		}
	}
	for _, tc := range []struct{ xdg, home, want string }{
		{"/x/data", "/home/a", "/x/data/agentsafe"}, {"", "/home/a", "/home/a/.local/share/agentsafe"}, {"data", "/home/a", ""},
	} {
		t.Setenv("XDG_DATA_HOME", tc.xdg)
		t.Setenv("HOME", tc.home)
		if got, _ := DataDir(); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

// TestAccount looks up ids among lines that are none.
func TestAccount(t *testing.T) {
	const passwd = "root:x:0:0::/root:/bin/sh\nbroken:1000\n+::::::\nalice:x:1000:1000::/home/alice:/bin/sh\n"
	if u := account(passwd, 1000); u.name != "alice" || u.home != "/home/alice" {
		t.Errorf("%+v", u)
	}
	if u := account(passwd, 1); u != (user{}) {
		t.Errorf("%+v", u)
	}
}

// TestRunMapper reports what a helper says, and that there is none.
func TestRunMapper(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if err := runMapper("newuidmap", 1, PlanMap(1, nil)); err == nil || !strings.Contains(err.Error(), "not installed") {
		t.Error(err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "newuidmap"), []byte("#!/bin/sh\necho \"no $*\" >&2\nexit 1\n"), 0o755))
	if err := runMapper("newuidmap", 77, PlanMap(1000, []Range{{9, 2}})); err == nil || !strings.Contains(err.Error(), "no 77 0 1000 1 1 9 2") {
		t.Error(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
