package container

import (
	"io"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStartProgram: it has the descriptors and the environment that it was given and nothing else, and once it has been
// waited for its number is left alone.
func TestStartProgram(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	within := 0
	p, err := startProgram("/bin/sh", []string{"sh", "-c", "pwd; echo $X; ls /proc/self/fd; exec sleep 1000"}, []string{"X=y", "PATH=/usr/bin:/bin"},
		[]*os.File{nil, w}, &syscall.SysProcAttr{Setsid: true}, func(f func() error) error { within++; return f() })
	w.Close()
	if err != nil || within != 1 {
		t.Fatal(within, err)
	}
	const want = "/\ny\n0\n1\n" // ls opens the directory in place of what was closed
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Errorf("it says %q (%v), want %q", got, err, want)
	}
	p.kill()
	p.wait()
	if err := unix.Kill(p.pid, 0); err == nil {
		t.Error("the process is still there")
	}
	p.pid = os.Getpid() // as if the number had been given again
	p.kill()
	p.wait()
	if _, err := startProgram("/nonexistent", []string{"x"}, nil, nil, nil, nil); err == nil {
		t.Error("a program that isn't there was started")
	}
}
