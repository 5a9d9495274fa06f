package shim

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func TestOutputWithoutReader(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("echo hello"))
	out := fifo(t, s, "out")
	began := time.Now()
	s.create(t, &task.CreateTaskRequest{Stdout: out, Stderr: out})
	s.start(t, "")
	s.wait(t, "")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a fifo without a reader held the container up for %v", took)
	}
	s.delete(t, "") // gives up on the reader
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("a fifo without a reader held its deletion up for %v", took)
	}
}

// Output waits for a reader that comes after the end.
func TestOutputForALateReader(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("echo hello"))
	out := fifo(t, s, "out")
	s.create(t, &task.CreateTaskRequest{Stdout: out})
	s.start(t, "")
	s.wait(t, "")
	got, done := collect(out)
	within(t, 5*time.Second, "output", done)
	if got.String() != "hello\n" {
		t.Errorf("got %q", got)
	}
}

// A client that is slow to open its end, and stops trying when it hears of the exit, as containerd's does, still gets the
// output: the report of an exit waits for readers for a moment.
func TestOutputForAClientThatGivesUp(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("echo hello"))
	out := fifo(t, s, "out")
	s.create(t, &task.CreateTaskRequest{Stdout: out})
	var ended atomic.Bool
	type answer struct {
		text string
		late bool
	}
	answers := make(chan answer, 1)
	go func() {
		time.Sleep(100 * time.Millisecond)
		f, err := os.Open(out)
		late := ended.Load()
		if err != nil {
			answers <- answer{err.Error(), late}
			return
		}
		defer f.Close()
		data, err := io.ReadAll(f)
		if err != nil {
			data = []byte(err.Error())
		}
		answers <- answer{string(data), late}
	}()
	s.start(t, "")
	s.wait(t, "")
	ended.Store(true)
	if got := <-answers; got.late || got.text != "hello\n" {
		t.Errorf("the exit was reported before the reader had opened: %v, and it got %q", got.late, got.text)
	}
}

// A reader that goes away and another one that comes: nothing fails, and what was not read is not lost.
func TestOutputForAReaderThatComesBack(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("echo one; sleep 1; echo two; sleep 0.5; echo three"))
	out := fifo(t, s, "out")
	s.create(t, &task.CreateTaskRequest{Stdout: out})
	s.start(t, "")
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 4)
	if _, err := io.ReadFull(f, first); err != nil || string(first) != "one\n" {
		t.Fatalf("got %q, %v", first, err)
	}
	f.Close()
	time.Sleep(1200 * time.Millisecond)
	got, done := collect(out)
	within(t, 10*time.Second, "output", done)
	if got.String() != "two\nthree\n" {
		t.Errorf("got %q", got)
	}
	if status := s.wait(t, ""); status != 0 {
		t.Errorf("ended with %d", status)
	}
}

func TestReaderThatStops(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("yes"))
	out := fifo(t, s, "out")
	f, err := os.OpenFile(out, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s.create(t, &task.CreateTaskRequest{Stdout: out})
	s.start(t, "")
	time.Sleep(300 * time.Millisecond)
	began := time.Now()
	s.kill(t)
	s.wait(t, "")
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("death took %v", took)
	}
	s.delete(t, "")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("deletion took %v", took)
	}
}

func TestOneGibibyteOfOutput(t *testing.T) {
	const mib = 1024
	s := startShim(t, newDaemon(t), harness.Sh("dd if=/dev/zero bs=1M count=1024 2>/dev/null; echo end"))
	out := fifo(t, s, "out")
	var count int64
	var tail []byte
	done := make(chan struct{})
	go func() {
		defer close(done)
		f, err := os.Open(out)
		if err != nil {
			return
		}
		defer f.Close()
		buf := make([]byte, 1<<20)
		for {
			n, err := f.Read(buf)
			count += int64(n)
			if n > 0 {
				tail = append(tail[:0], buf[max(0, n-4):n]...)
			}
			if err != nil {
				return
			}
		}
	}()
	began := time.Now()
	s.create(t, &task.CreateTaskRequest{Stdout: out})
	s.start(t, "")
	within(t, time.Minute, "output", done)
	t.Logf("%.0f MiB/s", mib/time.Since(began).Seconds())
	if count != mib<<20+4 || string(tail) != "end\n" {
		t.Errorf("got %d bytes, ending in %q", count, tail)
	}
	s.wait(t, "")
}

func TestInputUntilItIsClosed(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("cat"))
	in, out := fifo(t, s, "in"), fifo(t, s, "out")
	got, done := collect(out)
	s.create(t, &task.CreateTaskRequest{Stdin: in, Stdout: out})
	s.start(t, "")
	for _, part := range []string{"one\n", "two\n"} {
		// Each writer closes its end, as an engine does that is detached: no end of file for the process.
		if err := os.WriteFile(in, []byte(part), 0); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-done:
		t.Fatal("input ended with its writer")
	case <-time.After(300 * time.Millisecond):
	}
	if _, err := s.CloseIO(timeout(t), &task.CloseIORequest{ID: s.id, Stdin: true}); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "end of input", done)
	if got.String() != "one\ntwo\n" {
		t.Errorf("got %q", got)
	}
	if status := s.wait(t, ""); status != 0 {
		t.Errorf("ended with %d", status)
	}
}

// 100 MiB through `cat` in both directions at once, with a reader that is slower than the writer.
func TestInputIsNotLost(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("cat"))
	in, out := fifo(t, s, "in"), fifo(t, s, "out")
	s.create(t, &task.CreateTaskRequest{Stdin: in, Stdout: out})
	got, done := collect(out)
	s.start(t, "")
	data := bytes.Repeat([]byte("0123456789abcdef"), 100<<16)
	if err := os.WriteFile(in, data, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CloseIO(timeout(t), &task.CloseIORequest{ID: s.id, Stdin: true}); err != nil {
		t.Fatal(err)
	}
	within(t, 30*time.Second, "output", done)
	if !bytes.Equal(got.Bytes(), data) {
		t.Errorf("got %d bytes of %d", got.Len(), len(data))
	}
}

func TestTerminal(t *testing.T) {
	s := startShim(t, newDaemon(t), func(spec *specs.Spec) {
		harness.Sh("tty; read x; stty size; echo got $x")(spec)
		spec.Process.Terminal = true
	})
	in, out := fifo(t, s, "in"), fifo(t, s, "out")
	got, done := collect(out)
	s.create(t, &task.CreateTaskRequest{Stdin: in, Stdout: out, Terminal: true})
	if _, err := s.ResizePty(timeout(t), &task.ResizePtyRequest{ID: s.id, Width: 91, Height: 17}); err != nil {
		t.Fatal(err)
	}
	s.start(t, "")
	if err := os.WriteFile(in, []byte("line\n"), 0); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "output", done)
	for _, want := range []string{"/dev/pts/0\n", "17 91\n", "got line\n"} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	s.wait(t, "")
}

// Images link their logs to /dev/stdout, which their user has to be able to open.
func TestOutputCanBeOpenedAgain(t *testing.T) {
	s := startShim(t, newDaemon(t), func(spec *specs.Spec) {
		harness.Sh("echo out > /dev/stdout; echo err > /dev/stderr")(spec)
		spec.Process.User = specs.User{UID: 1000, GID: 1000}
	})
	out, errOut := fifo(t, s, "out"), fifo(t, s, "err")
	got, done := collect(out)
	gotErr, doneErr := collect(errOut)
	s.create(t, &task.CreateTaskRequest{Stdout: out, Stderr: errOut})
	s.start(t, "")
	within(t, 10*time.Second, "output", done)
	within(t, 10*time.Second, "error output", doneErr)
	if got.String() != "out\n" || gotErr.String() != "err\n" {
		t.Errorf("got %q and %q", got, gotErr)
	}
	s.wait(t, "")
}

func TestLogFile(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("echo out; echo err >&2"))
	path := filepath.Join(s.bundle.Dir, "logs", "c.log")
	s.create(t, &task.CreateTaskRequest{Stdout: "file://" + path})
	s.start(t, "")
	s.wait(t, "")
	s.delete(t, "")
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), "out\n") || !strings.Contains(string(data), "err\n") {
		t.Errorf("got %q, %v", data, err)
	}
}

func TestLogProgram(t *testing.T) {
	s := startShim(t, newDaemon(t), harness.Sh("echo out; echo err >&2"))
	program := filepath.Join(s.bundle.Dir, "logger")
	script := "#!/bin/sh\nexec 5>&-\nread out <&3; read err <&4\necho \"$CONTAINER_ID $1 $2 $out $err\" > " + program + ".log\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	s.create(t, &task.CreateTaskRequest{Stdout: "binary://" + program + "?key=value", Stderr: "binary://" + program + "?key=value"})
	s.start(t, "")
	s.wait(t, "")
	s.delete(t, "")
	want := s.id + " key value out err\n"
	var data []byte
	for deadline := time.Now().Add(5 * time.Second); string(data) != want && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		data, _ = os.ReadFile(program + ".log")
	}
	if string(data) != want {
		t.Errorf("got %q, want %q", data, want)
	}
}
