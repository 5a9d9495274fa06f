package pump

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pollable makes a pipe whose ends both belong to the poller.
func pollable(t *testing.T) (r, w *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	r, w = os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return r, w
}

// Both sides stall in turn: an empty source, a full destination.
func TestStreamBetweenPipes(t *testing.T) {
	const size = 4 << 20
	fromR, fromW := pollable(t)
	toR, toW := pollable(t)
	data := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	moved := 0
	result := make(chan error, 1)
	go func() {
		err := Stream(toW, fromR, func(n int) { moved += n })
		toW.Close()
		result <- err
	}()
	go func() {
		for part := data; len(part) > 0; {
			n := min(len(part), 100_000)
			fromW.Write(part[:n]) //nolint:errcheck // the reader compares
			part = part[n:]
			time.Sleep(time.Millisecond)
		}
		fromW.Close()
	}()
	time.Sleep(50 * time.Millisecond) // until the destination is full
	got, err := io.ReadAll(toR)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(data))
	}
	if err := <-result; err != nil || moved != size {
		t.Errorf("moved %d, %v", moved, err)
	}
}

// splice(2) refuses a file that is open for appending.
func TestStreamToAFile(t *testing.T) {
	r, w := pollable(t)
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	go func() {
		w.WriteString("one\ntwo\n") //nolint:errcheck // the reader compares
		w.Close()
	}()
	if err := Stream(f, r, func(int) {}); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "one\ntwo\n" {
		t.Errorf("got %q, %v", data, err)
	}
}

func TestStreamEndsWhenItsReaderGoes(t *testing.T) {
	fromR, fromW := pollable(t)
	toR, toW := pollable(t)
	toR.Close()
	if _, err := fromW.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if err := Stream(toW, fromR, func(int) {}); err == nil {
		t.Error("no error")
	}
}
