package shim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// crashCalls are the kinds of system calls at which the shim is ended: those that acquire, write or give back.
func crashCalls() []string {
	return []string{
		"mkdirat", "openat2", "flock", "renameat", "unlinkat", "write", "clone,clone3", "socketpair", "bind", "listen", "memfd_create",
		"open_tree", "waitid", "sendto,sendmsg", "recvfrom,recvmsg", "setns", "pidfd_open,pidfd_send_signal", "connect", "readlinkat",
	}
}

// TestCrash_Shim ends the shim, or the process that it has just cloned, with SIGKILL at each system call of a container's
// life: create, start, an exec, kill and delete. What containerd then does, `shim delete`, leaves nothing.
func TestCrash_Shim(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("probe strace: " + err.Error())
	}
	startShim(t, newDaemon(t), nil).lead(t) //nolint:errcheck // the filters are compiled once
	counts := map[string]int{}
	t.Run("count", func(t *testing.T) {
		s := startShim(t, newDaemon(t), harness.Sh("sleep 1000"))
		file := filepath.Join(s.bundle.Dir, "strace.out")
		detach := s.trace(t, "-o", file, "-e", "trace="+strings.Join(crashCalls(), ","))
		if err := s.lead(t); err != nil {
			t.Fatal(err)
		}
		detach()
		counts = countCalls(t, file, crashCalls())
		t.Logf("calls of a life: %v", counts)
	})
	for _, point := range crashPoints(counts, crashCalls(), 8) {
		t.Run(point, func(t *testing.T) {
			before, err := box.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			s := startShim(t, newDaemon(t), harness.Sh("sleep 1000"))
			calls, n, _ := strings.Cut(point, ":")
			detach := s.trace(t, "-o", "/dev/null", "-e", "trace="+calls, "-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%s", calls, n))
			s.lead(t)                      //nolint:errcheck // it may get as far as it likes
			unix.Kill(s.pid, unix.SIGKILL) //nolint:errcheck // it may be dead already: that is the point
			detach()
			for range 2 { // containerd may ask again
				if out, err := s.command("delete").CombinedOutput(); err != nil {
					t.Errorf("delete: %v: %s", err, out)
				}
			}
			s.daemon.leave(t)
			os.Remove(s.daemon.path)
			left := slices.DeleteFunc(box.Leftovers(before), func(l string) bool { return strings.HasSuffix(l, ".ttrpc") })
			if len(left) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

// lead leads a container through its life, as far as the shim goes along; the error is the one that ended it.
func (s *shim) lead(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, step := range []func() error{
		func() error {
			_, err := s.Create(ctx, &task.CreateTaskRequest{ID: s.id, Bundle: s.bundle.Dir})
			return err
		},
		func() error { _, err := s.Start(ctx, &task.StartRequest{ID: s.id}); return err },
		func() error {
			_, err := s.Exec(ctx, &task.ExecProcessRequest{ID: s.id, ExecID: "e", Spec: execSpec(t, "/bin/sleep", "1000")})
			return err
		},
		func() error { _, err := s.Start(ctx, &task.StartRequest{ID: s.id, ExecID: "e"}); return err },
		func() error {
			_, err := s.Kill(ctx, &task.KillRequest{ID: s.id, Signal: uint32(unix.SIGKILL), All: true})
			return err
		},
		func() error { _, err := s.Wait(ctx, &task.WaitRequest{ID: s.id}); return err },
		func() error {
			_, err := s.TTRPCTaskService.Delete(ctx, &task.DeleteRequest{ID: s.id, ExecID: "e"})
			return err
		},
		func() error { _, err := s.TTRPCTaskService.Delete(ctx, &task.DeleteRequest{ID: s.id}); return err },
	} {
		if err := step(); err != nil {
			if ctx.Err() != nil {
				t.Error("a call did not end")
			}
			return err
		}
	}
	return nil
}

// trace attaches strace to the shim and returns what detaches it.
func (s *shim) trace(t *testing.T, options ...string) (detach func()) {
	t.Helper()
	cmd := exec.Command("strace", append([]string{"-f", "-qq", "-b", "execve", "-p", strconv.Itoa(s.pid)}, options...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); !traced(s.pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("strace does not attach")
		}
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait() //nolint:errcheck // how it ends says nothing
		close(ended)
	}()
	return func() {
		cmd.Process.Signal(unix.SIGINT) //nolint:errcheck // it may have ended with the shim
		select {
		case <-ended:
		case <-time.After(time.Second):
			// It waits for a thread that was killed while it stood still; the kernel detaches from the others.
			cmd.Process.Kill() //nolint:errcheck // likewise
			<-ended
		}
	}
}

// traced reports whether every thread of a process is traced.
func traced(pid int) bool {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		return false
	}
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), "TracerPid:\t0\n") {
			return false
		}
	}
	return true
}

func countCalls(t *testing.T, file string, kinds []string) map[string]int {
	t.Helper()
	out, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(string(out)) {
		_, call, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, isCall := strings.Cut(strings.TrimSpace(call), "(")
		for _, kind := range kinds {
			if isCall && strings.Contains(","+kind+",", ","+name+",") {
				counts[kind]++
			}
		}
	}
	return counts
}

// crashPoints chooses at which calls to try: all of them in a long run, or else some by lot, the first of a kind before
// the others.
func crashPoints(counts map[string]int, kinds []string, total int) []string {
	var first, further []string
	for _, kind := range kinds {
		for n := range counts[kind] {
			if n == 0 {
				first = append(first, kind+":1")
			} else {
				further = append(further, kind+":"+strconv.Itoa(n+1))
			}
		}
	}
	if os.Getenv("AGENTSAFE_TEST_LONG") != "" {
		return append(first, further...)
	}
	rand.Shuffle(len(first), func(i, j int) { first[i], first[j] = first[j], first[i] })
	rand.Shuffle(len(further), func(i, j int) { further[i], further[j] = further[j], further[i] })
	half := min(total/2, len(first))
	return append(first[:half], further[:min(total-half, len(further))]...)
}
