package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Cmd is a program to run inside the box.
type Cmd struct {
	Args  []string
	Dir   string   // current directory; empty means the test's own
	Env   []string // added to the box's environment
	Stdin string
	// TTY gives the program a new session with a terminal of 80 columns and 24 rows as its three standard files;
	// Result.Stdout then holds all that came out of the terminal.
	TTY bool
	// Files are passed on as descriptors 3, 4, ... and stay open here.
	Files []*os.File
	// Timeout ends the program with SIGKILL and the test with an error; zero means two minutes.
	Timeout time.Duration
}

// Result is what a program did.
type Result struct {
	Args           []string
	Exit           int // 128+signal if a signal ended it
	Stdout, Stderr string
	Took           time.Duration
}

// String shows the result in test failures.
func (r Result) String() string {
	return fmt.Sprintf("$ %s\nexit %d in %v\nstdout: %s\nstderr: %s", strings.Join(r.Args, " "), r.Exit, r.Took.Round(time.Millisecond),
		tail([]byte(r.Stdout)), tail([]byte(r.Stderr)))
}

// Run runs c to its end. Standard output and error go to files and not to pipes, so that a process which stays behind
// (a container's init) does not keep Run waiting.
func (b *Box) Run(t testing.TB, c Cmd) Result {
	t.Helper()
	return b.Start(t, c).Wait(t)
}

// MustRun is Run for steps that have to succeed. It returns standard output without the last line feed.
func (b *Box) MustRun(t testing.TB, args ...string) string {
	t.Helper()
	r := b.Run(t, Cmd{Args: args})
	if r.Exit != 0 {
		t.Fatalf("want success:\n%v", r)
	}
	return strings.TrimSuffix(r.Stdout, "\n")
}

// Running is a program that has been started.
type Running struct {
	cmd         *exec.Cmd
	c           Cmd
	out, errOut *os.File
	master      *os.File
	terminal    screen
	drained     chan struct{}
	began       time.Time
	cancel      context.CancelFunc
	ctx         context.Context //nolint:containedctx // tells Wait whether it was the time limit that ended the program
}

// Start starts c. The caller calls Wait.
func (b *Box) Start(t testing.TB, c Cmd) *Running {
	t.Helper()
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Minute
	}
	r := &Running{c: c, began: time.Now(), drained: make(chan struct{})}
	r.ctx, r.cancel = context.WithTimeout(context.Background(), c.Timeout)
	r.cmd = exec.CommandContext(r.ctx, c.Args[0], c.Args[1:]...)
	r.cmd.Dir, r.cmd.Env, r.cmd.ExtraFiles = c.Dir, append(os.Environ(), c.Env...), c.Files
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.cmd.Cancel = func() error { return unix.Kill(-r.cmd.Process.Pid, unix.SIGKILL) }
	if c.Stdin != "" && !c.TTY {
		r.cmd.Stdin = strings.NewReader(c.Stdin)
	}
	if c.TTY {
		r.startOnTerminal(t)
		return r
	}
	close(r.drained)
	dir, err := os.MkdirTemp(b.Dir, "run")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if r.out, err = os.OpenFile(filepath.Join(dir, "out"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		t.Fatal(err)
	}
	if r.errOut, err = os.OpenFile(filepath.Join(dir, "err"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.errOut
	if err := r.cmd.Start(); err != nil {
		t.Fatalf("start %v: %v", c.Args, err)
	}
	return r
}

func (r *Running) startOnTerminal(t testing.TB) {
	t.Helper()
	master, slave, err := openTerminal()
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	r.master = master
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = slave, slave, slave
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := r.cmd.Start(); err != nil {
		t.Fatalf("start %v: %v", r.c.Args, err)
	}
	go func() {
		defer close(r.drained)
		_, _ = io.Copy(&r.terminal, master) // ends with EIO when the last slave is closed
	}()
	if r.c.Stdin != "" {
		if _, err := io.WriteString(master, r.c.Stdin); err != nil {
			t.Fatal(err)
		}
	}
}

// Terminal is the master side of the program's terminal, or nil.
func (r *Running) Terminal() *os.File { return r.master }

// Pid is the program's process id.
func (r *Running) Pid() int { return r.cmd.Process.Pid }

// Output returns what the program has written to its standard output, or its terminal, so far.
func (r *Running) Output() string {
	if r.master != nil {
		return r.terminal.String()
	}
	return readAll(r.out)
}

// screen is what a terminal has shown; it is read while the program writes.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// Stop ends the program, a server that the test has started, and waits for it.
func (r *Running) Stop(t testing.TB) {
	t.Helper()
	if err := unix.Kill(-r.Pid(), unix.SIGKILL); err != nil {
		t.Errorf("stop %v: %v", r.c.Args, err)
	}
	r.Wait(t)
}

// Wait waits for the program, and only the program, to end.
func (r *Running) Wait(t testing.TB) Result {
	t.Helper()
	defer r.cancel()
	err := r.cmd.Wait()
	res := Result{Args: r.c.Args, Took: time.Since(r.began)}
	if r.master != nil {
		select {
		case <-r.drained:
		case <-time.After(5 * time.Second):
			t.Errorf("%v: the terminal is still open", r.c.Args)
		}
		res.Stdout = r.terminal.String()
		r.master.Close()
	} else {
		res.Stdout, res.Stderr = readAll(r.out), readAll(r.errOut)
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		res.Exit = exit.ExitCode()
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			res.Exit = 128 + int(ws.Signal())
		}
	case err != nil:
		t.Fatalf("wait: %v\n%v", err, res)
	}
	if r.ctx.Err() != nil {
		t.Fatalf("over the time limit of %v:\n%v", r.c.Timeout, res)
	}
	return res
}

func readAll(f *os.File) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	data, _ := io.ReadAll(io.NewSectionReader(f, 0, info.Size()))
	return string(data)
}

// openTerminal makes a terminal that passes output on as it is: no line feed becomes two characters by our doing.
func openTerminal() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlock terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, fmt.Errorf("ask for the terminal's number: %w", err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		return nil, nil, fmt.Errorf("set window size: %w", err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	mode, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		return nil, nil, err
	}
	mode.Oflag &^= unix.OPOST
	return master, slave, unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, mode)
}
