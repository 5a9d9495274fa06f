package main

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"
)

// session is a run on a terminal of ours.
type session struct {
	t       *testing.T
	console console.Console
	slave   *os.File
	output  chan []byte
	seen    string
}

func newSession(t *testing.T) *session {
	t.Helper()
	c, path, err := console.NewPty()
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		slave.Close()
		c.Close()
	})
	s := &session{t: t, console: c, slave: slave, output: make(chan []byte, 256)}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := c.Read(buf)
			if err != nil {
				close(s.output)
				return
			}
			s.output <- append([]byte{}, buf[:n]...)
		}
	}()
	return s
}

// expect waits until the terminal has shown text.
func (s *session) expect(text string) {
	s.t.Helper()
	limit := time.After(30 * time.Second)
	for !strings.Contains(s.seen, text) {
		select {
		case data, ok := <-s.output:
			if !ok {
				s.t.Fatalf("terminal closed, no %q in %q", text, s.seen)
			}
			s.seen += string(data)
		case <-limit:
			s.t.Fatalf("no %q in %q", text, s.seen)
		}
	}
	_, s.seen, _ = strings.Cut(s.seen, text)
}

func (s *session) send(text string) {
	s.t.Helper()
	if _, err := s.console.Write([]byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) termios() unix.Termios {
	s.t.Helper()
	got, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return *got
}

func TestRunOnTerminal(t *testing.T) {
	b := newBench(t)
	s := newSession(t)
	if err := s.console.Resize(console.WinSize{Height: 41, Width: 99}); err != nil {
		t.Fatal(err)
	}
	before := s.termios()
	cmd := b.command("--", "sh", "-c", `echo "size $(stty size) term $TERM tty $(tty)"; trap 'echo "now $(stty size)"' WINCH; echo ready; while ! read -r line; do :; done; echo "got <$line>"; sleep 0.2; exit 9`)
	cmd.Env = append(os.Environ(), "TERM=vt220")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.expect("size 41 99 term vt220 tty /dev/pts/0")
	s.expect("\nready\r\n")
	if during := s.termios(); during.Lflag&unix.ICANON != 0 {
		t.Error("the outer terminal is not raw")
	}
	if err := s.console.Resize(console.WinSize{Height: 50, Width: 120}); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(unix.SIGWINCH); err != nil { // resizing by the master does not reach a group in the background
		t.Fatal(err)
	}
	s.expect("now 50 120\r\n")
	s.send("hello\r")
	s.expect("got <hello>")
	err := cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 9 {
		t.Errorf("status %d, %v", got, err)
	}
	if after := s.termios(); after != before {
		t.Errorf("terminal not restored: %+v, before %+v", after, before)
	}
}

// TestTerminalIsRestored on every way out.
func TestTerminalIsRestored(t *testing.T) {
	b := newBench(t)
	for name, args := range map[string][]string{
		"time-out":        {"--timeout", "500ms", "--", "sleep", "100"},
		"no such command": {"--", "no-such-command"},
		"refused":         {"--workspace", "/", "--", "true"},
		"killed":          {"--", "sh", "-c", "(kill -9 $PPID); sh -c 'kill -9 $$'"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession(t)
			before := s.termios()
			cmd := b.command(args...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Run(); err == nil {
				t.Error("succeeded")
			}
			if after := s.termios(); after != before {
				t.Errorf("terminal not restored: %+v, before %+v", after, before)
			}
		})
	}
}

// TestAttack_TaskHoldsTerminal: with output on a terminal and input elsewhere the
// task gets pipes, and nothing to type into.
func TestAttack_TaskHoldsTerminal(t *testing.T) {
	b := newBench(t)
	s := newSession(t)
	cmd := b.command("--", "sh", "-c", "test -t 1 || echo no terminal; (: </dev/tty) 2>/dev/null || echo no tty")
	cmd.Stdout, cmd.Stderr = s.slave, s.slave
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	s.expect("no terminal")
	s.expect("no tty")
}
