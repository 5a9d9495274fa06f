package bootstrap

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestGroupOf(t *testing.T) {
	for _, tc := range []struct{ name, config, want, err string }{
		{name: "none", config: `{"annotations": {"a": "b"}}`, want: "id"},
		{name: "sandbox", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": "pod"}}`, want: "pod"},
		{name: "first counts", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": "pod", "io.containerd.runc.v2.group": "g"}}`, want: "g"},
		{name: "only mentioned", config: `{"process": {"args": ["io.kubernetes.cri.sandbox-id"]}}`, want: "id"},
		{name: "empty", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": ""}}`, want: "id"},
		{name: "huge (CVE-2026-47262)", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": "` + strings.Repeat("x", 2000) + `"}}`, err: "2000 bytes"},
		{name: "damaged", config: `{"io.kubernetes.cri.sandbox-id`, err: "config.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := groupOf([]byte(tc.config), "id")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestProfileOfProgramName(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/bin/containerd-shim-agentsafe-v2":         "",
		"/usr/bin/containerd-shim-agentsafe-offline-v2": "offline",
		"containerd-shim-agentsafe-my-own-v2":           "my-own",
		"something":                                     "",
	} {
		if got := profileOf(program); got != want {
			t.Errorf("%s: got %q, want %q", program, got, want)
		}
	}
}

// socketDirOf is short: paths of sockets have 108 bytes.
func socketDirOf(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newListener is a shim's socket that has its name.
func newListener(t *testing.T, path string) (*os.File, error) {
	t.Helper()
	f, err := newSocket()
	if err != nil {
		t.Fatal(err)
	}
	if err := listen(f, path); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func TestListen(t *testing.T) {
	path := filepath.Join(socketDirOf(t), "sock")
	f, err := newListener(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if _, err := newListener(t, path); !errors.Is(err, errInUse) {
		t.Errorf("second shim: got %v", err)
	}
	f.Close() // the shim is killed, its socket stays
	if _, err := net.Dial("unix", path); err == nil {
		t.Fatal("the socket of a dead shim answers")
	}
	f, err = newListener(t, path)
	if err != nil {
		t.Fatalf("after a dead shim: %v", err)
	}
	f.Close()
}

// A shim whose queue of connections is full must not be taken for a dead one.
func TestBusyShimIsAlive(t *testing.T) {
	path := filepath.Join(socketDirOf(t), "sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if conn, err := net.Dial("unix", path); err == nil {
			defer conn.Close()
		} else if !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
	}
	if _, err := net.Dial("unix", path); err == nil {
		t.Fatal("the queue is not full")
	}
	if !alive(path) {
		t.Error("taken for dead")
	}
}

func TestSweep(t *testing.T) {
	dir := socketDirOf(t)
	paths := map[string]string{}
	for _, name := range []string{"dead", "living"} {
		path := socketPath(dir, "c", "n", name)
		f, err := newListener(t, path)
		if err != nil {
			t.Fatal(err)
		}
		if name == "dead" {
			f.Close()
		} else {
			defer f.Close()
		}
		paths[name] = path
	}
	other := filepath.Join(dir, "another-program.sock")
	if f, err := newListener(t, other); err != nil {
		t.Fatal(err)
	} else {
		f.Close()
	}
	there := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	sweep(dir, time.Now())
	if !there(paths["dead"]) {
		t.Error("a socket that may be about to listen is removed")
	}
	sweep(dir, time.Now().Add(2*sweepAge))
	if there(paths["dead"]) || !there(paths["living"]) || !there(other) {
		t.Errorf("dead %t, living %t, another program's %t", there(paths["dead"]), there(paths["living"]), there(other))
	}
	sweep(filepath.Join(dir, "absent"), time.Now())
}

func TestAttack_SocketDirOfAnother(t *testing.T) {
	base := socketDirOf(t)
	open := filepath.Join(base, "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := checkSocketDir(open); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(open); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(open, link); err != nil {
		t.Fatal(err)
	}
	if err := checkSocketDir(link); err == nil {
		t.Error("a link is taken for a directory")
	}
	if err := checkSocketDir("relative"); err == nil {
		t.Error("a relative path is taken")
	}
	if os.Geteuid() != 0 {
		t.Skip("probe root: another's directory needs chown(2)")
	}
	foreign := filepath.Join(base, "foreign")
	if err := errors.Join(os.Mkdir(foreign, 0o700), unix.Chown(foreign, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if err := checkSocketDir(foreign); err == nil {
		t.Error("another's directory is taken")
	}
}
