package socket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// socketDirOf is short: paths of sockets have 108 bytes.
func socketDirOf(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newListener is a shim's socket that has its name.
func newListener(t *testing.T, path string) (*os.File, error) {
	t.Helper()
	f, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if err := Listen(f, path); err != nil {
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
	if _, err := newListener(t, path); !errors.Is(err, ErrInUse) {
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
	if !Alive(path) {
		t.Error("taken for dead")
	}
}

func TestSweep(t *testing.T) {
	dir := socketDirOf(t)
	paths := map[string]string{}
	for _, name := range []string{"dead", "living"} {
		path := Path(dir, "c", "n", name)
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
	Sweep(dir, time.Now())
	if !there(paths["dead"]) {
		t.Error("a socket that may be about to listen is removed")
	}
	Sweep(dir, time.Now().Add(2*sweepAge))
	if there(paths["dead"]) || !there(paths["living"]) || !there(other) {
		t.Errorf("dead %t, living %t, another program's %t", there(paths["dead"]), there(paths["living"]), there(other))
	}
	Sweep(filepath.Join(dir, "absent"), time.Now())
}

func TestAttack_SocketDirOfAnother(t *testing.T) {
	base := socketDirOf(t)
	open := filepath.Join(base, "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := CheckDir(open); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(open); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(open, link); err != nil {
		t.Fatal(err)
	}
	if err := CheckDir(link); err == nil {
		t.Error("a link is taken for a directory")
	}
	if err := CheckDir("relative"); err == nil {
		t.Error("a relative path is taken")
	}
	if os.Geteuid() != 0 {
		t.Skip("probe root: another's directory needs chown(2)")
	}
	foreign := filepath.Join(base, "foreign")
	if err := errors.Join(os.Mkdir(foreign, 0o700), unix.Chown(foreign, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if err := CheckDir(foreign); err == nil {
		t.Error("another's directory is taken")
	}
}
