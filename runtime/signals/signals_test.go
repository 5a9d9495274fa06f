package signals_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/signals"
)

const (
	childEnv    = "AGENTSAFE_TEST_SIGNALS"
	emulatorEnv = "AGENTSAFE_TEST_EMULATOR"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
	}
	os.Exit(m.Run())
}

// child prints each signal that it gets, while its threads allocate and collect, and ends at SIGTERM.
func child() {
	f, err := signals.Open()
	if err != nil {
		panic(err)
	}
	for range 4 {
		go func() {
			for i := 0; ; i++ {
				_ = make([]byte, 1<<(i%20))
				runtime.Gosched()
			}
		}()
	}
	out, err := exec.Command("cat", "/proc/self/status").Output()
	_, caught, _ := strings.Cut(string(out), "SigCgt:")
	fmt.Printf("ready %s %v\n", strings.Fields(caught)[0], err)
	for {
		poll := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && err != unix.EINTR {
			panic(err)
		}
		for _, s := range signals.Read(f) {
			fmt.Println(int(s))
			if s == unix.SIGTERM {
				os.Exit(7)
			}
		}
	}
}

func TestForward(t *testing.T) {
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	last := unix.Signal(64)
	if emulator := os.Getenv(emulatorEnv); emulator != "" {
		cmd = exec.Command(emulator, self)
		last = 31 // qemu moves the real-time signals of whoever it does not emulate
	}
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it has ended by itself if all went well
		cmd.Wait()         //nolint:errcheck // likewise
	})
	stuck := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	t.Cleanup(func() { stuck.Stop() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready 0000000000000000 <nil>" {
		t.Fatalf("first line %q, want no handlers in a child of the process", lines.Text())
	}
	for round := range 20 {
		for s := unix.Signal(1); s <= last; s++ {
			switch {
			case s == unix.SIGTERM || s >= 32 && s < 34:
				continue
			case s == unix.SIGURG || s == unix.SIGCHLD || s == unix.SIGPIPE || s == unix.SIGPROF || s == unix.SIGSYS ||
				s == unix.SIGKILL || s == unix.SIGSTOP || s >= unix.SIGILL && s <= unix.SIGTRAP || s == unix.SIGBUS ||
				s == unix.SIGFPE || s == unix.SIGSEGV || s == unix.SIGSTKFLT:
				continue // not ours
			}
			if err := unix.Kill(cmd.Process.Pid, s); err != nil {
				t.Fatal(err)
			}
			if !lines.Scan() || lines.Text() != fmt.Sprint(int(s)) {
				t.Fatalf("round %d: signal %d arrived as %q", round, s, lines.Text())
			}
		}
	}
	if err := unix.Kill(cmd.Process.Pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("child ended with %v, want its own status 7", err)
	}
}
