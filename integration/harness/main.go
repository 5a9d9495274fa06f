package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	envBox   = "AGENTSAFE_TEST_BOX"
	envCache = "AGENTSAFE_CACHE"
)

// Options are what a test package adds to its box.
type Options struct {
	// Prepare runs outside, with the machine's network and file system: the place to make images and programs.
	Prepare func(ctx context.Context) error
	// Setup runs inside, before the tests: the place to start an engine. Its clean-up runs after the tests and before
	// the check for leaks; either may be nil.
	Setup func(b *Box) (cleanup func() error, err error)
}

// Main is to be called by a package's TestMain, and does not return.
func Main(m *testing.M, o Options) {
	flag.Parse()
	if l := flag.Lookup("test.list"); l != nil && l.Value.String() != "" {
		os.Exit(m.Run())
	}
	var code int
	var err error
	if dir := os.Getenv(envBox); dir != "" {
		code, err = runInside(m, dir, o.Setup)
	} else {
		code, err = runOutside(os.Args[1:], o.Prepare)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// EnterBox runs the calling program again with args inside a box and returns its exit code, or, inside the box,
// returns the box with inside set. It serves programs that are not tests, such as the benchmark.
func EnterBox(args []string, prepare func(ctx context.Context) error) (b *Box, code int, err error) {
	if dir := os.Getenv(envBox); dir != "" {
		b, err = openBox(dir)
		return b, 0, err
	}
	code, err = runOutside(args, prepare)
	return nil, code, err
}

func runInside(m *testing.M, dir string, setup func(*Box) (func() error, error)) (int, error) {
	b, err := openBox(dir)
	if err != nil {
		return 1, fmt.Errorf("open box: %w", err)
	}
	before, err := b.Snapshot()
	if err != nil {
		return 1, err
	}
	cleanup := func() error { return nil }
	if setup != nil {
		c, err := setup(b)
		if err != nil {
			return 1, fmt.Errorf("set up: %w", err)
		}
		if c != nil {
			cleanup = c
		}
	}
	code := m.Run()
	if err := cleanup(); err != nil {
		return max(code, 1), fmt.Errorf("clean up: %w", err)
	}
	if left := b.waitForLeftovers(before, 10*time.Second); len(left) > 0 {
		return max(code, 1), fmt.Errorf("left behind by the tests:\n  %s", strings.Join(left, "\n  "))
	}
	return code, nil
}

// runOutside starts the box, reaps for it, and looks at what it left.
func runOutside(args []string, prepare func(context.Context) error) (code int, err error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("integration tests need root")
	}
	if os.Getenv(envCache) == "" {
		dir, err := CacheDir()
		if err != nil {
			return 1, err
		}
		if err := os.Setenv(envCache, dir); err != nil {
			return 1, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	if prepare != nil {
		if err := prepare(ctx); err != nil {
			return 1, fmt.Errorf("prepare: %w", err)
		}
	}
	dir, err := os.MkdirTemp("", "astest-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, removeTree(dir)) }()

	// Whatever loses its parent below us becomes our child: nothing that the tests start can hide.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("set child subreaper: %w", err)
	}
	// The parent-death signal follows the thread that forked.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), envBox+"="+dir)
	// Unshareflags rather than Cloneflags: with it os/exec makes the mount tree private before anything else happens.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start box: %w", err)
	}
	forwardSignals(cmd.Process.Pid)
	code = reapUntil(cmd.Process.Pid)
	left, err := sweep(filepath.Base(dir))
	if err != nil {
		return max(code, 1), err
	}
	if len(left) > 0 {
		return max(code, 1), fmt.Errorf("left behind by the box:\n  %s", strings.Join(left, "\n  "))
	}
	return code, nil
}

func forwardSignals(pid int) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	go func() {
		for s := range c {
			if s, ok := s.(syscall.Signal); ok {
				_ = unix.Kill(pid, s)
			}
		}
	}()
}

// reapUntil reaps every child until pid ends, and returns pid's exit code (128+signal if it was killed).
func reapUntil(pid int) int {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1
		case got == pid && status.Exited():
			return status.ExitStatus()
		case got == pid && status.Signaled():
			return 128 + int(status.Signal())
		}
	}
}

// removeTree removes dir, waiting a little for mounts of namespaces that are going away.
func removeTree(dir string) error {
	var err error
	for range 50 {
		if err = os.RemoveAll(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("remove box directory: %w", err)
}
