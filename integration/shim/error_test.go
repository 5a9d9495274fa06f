package shim

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// errorCalls are the kinds of system calls that are refused once: those of the kills but for what a kernel does not refuse.
// The standard library's fork takes a refused read of its own pipe for a child that has failed.
func errorCalls() []string {
	return []string{
		"mkdirat", "openat", "openat2", "flock", "renameat", "unlinkat", "socketpair", "socket", "bind", "listen", "memfd_create",
		"open_tree", "fcntl", "sendto,sendmsg", "setns", "pidfd_open", "pidfd_send_signal", "connect", "readlinkat", "pwrite64",
		"fstat,newfstatat", "getdents64", "pipe2", "fchown", "ioctl",
	}
}

// TestError_Shim refuses one system call after the other to the shim, or to the process that it has just cloned, in a
// container's life: create, start, an exec, kill and delete. The call that fails has one of containerd's codes and a
// reason. Nothing is left of a create that has failed, and the same shim makes the container on the next try; of what was
// made, delete leaves nothing.
func TestError_Shim(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("probe strace: " + err.Error())
	}
	startShim(t, newDaemon(t), nil).lead(t) //nolint:errcheck // the filters are compiled once
	counts := map[string]int{}
	t.Run("count", func(t *testing.T) {
		s := startShim(t, newDaemon(t), harness.Sh("sleep 1000"))
		file := filepath.Join(s.bundle.Dir, "strace.out")
		detach := s.trace(t, "-o", file, "-e", "trace="+strings.Join(errorCalls(), ","))
		if err := s.lead(t); err != nil {
			t.Fatal(err)
		}
		detach()
		counts = countCalls(t, file, errorCalls())
		t.Logf("calls of a life: %v", counts)
	})
	errnos := []string{"EIO", "ENOMEM", "EMFILE"}
	for i, point := range crashPoints(counts, errorCalls(), 14) {
		t.Run(point, func(t *testing.T) { refuseOnce(t, point, errnos[i%len(errnos)]) })
	}
}

func refuseOnce(t *testing.T, point, errno string) {
	before, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	s := startShim(t, newDaemon(t), harness.Sh("sleep 1000"))
	shimItself, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	calls, n, _ := strings.Cut(point, ":")
	detach := s.trace(t, "-o", "/dev/null", "-e", "trace="+calls, "-e", fmt.Sprintf("inject=%s:error=%s:when=%s", calls, errno, n))
	err = s.lead(t)
	detach()
	// The Go runtime itself gives up when it can't have its own descriptors or threads: that is a crash.
	if alive := unix.Kill(s.pid, 0) == nil && status.Code(err) != codes.Unavailable; alive {
		s.recovers(t, err, shimItself)
	}
	unix.Kill(s.pid, unix.SIGKILL) //nolint:errcheck // it may be dead already
	// containerd asks once it has lost the connection: a shim that has not ended yet keeps its socket.
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			break
		}
		conn.Close()
	}
	if out, err := s.command("delete").CombinedOutput(); err != nil {
		t.Errorf("delete: %v: %s", err, out)
	}
	s.daemon.leave(t)
	unix.Unlink(s.daemon.path) //nolint:errcheck // likewise
	if left := leftovers(before); len(left) > 0 {
		t.Errorf("%s at %s (%v): left behind:\n%s", errno, point, err, strings.Join(left, "\n"))
	}
}

// leftovers lists what is there and was not before.
func leftovers(before harness.Snapshot) []string {
	return slices.DeleteFunc(box.Leftovers(before), func(l string) bool { return strings.HasSuffix(l, ".ttrpc") })
}

// recovers looks at what a life that ended with an error has left in a shim that goes on, and leads it once more.
func (s *shim) recovers(t *testing.T, failure error, clean harness.Snapshot) {
	t.Helper()
	if failure != nil {
		if st, ok := status.FromError(failure); !ok || strings.TrimSpace(st.Message()) == "" {
			t.Errorf("no status or no reason: %v", failure)
		}
	}
	_, err := s.State(timeout(t), &task.StateRequest{ID: s.id})
	if status.Code(err) == codes.NotFound {
		// It was never made, or removed: then nothing of it is there.
		if left := leftovers(clean); len(left) > 0 {
			t.Errorf("%v: left behind, while the shim goes on:\n%s", failure, strings.Join(left, "\n"))
		}
	} else {
		// What an engine does with a container that it does not want any more.
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			s.Kill(timeout(t), &task.KillRequest{ID: s.id, Signal: uint32(unix.SIGKILL), All: true}) //nolint:errcheck // it may have ended
			s.TTRPCTaskService.Delete(timeout(t), &task.DeleteRequest{ID: s.id, ExecID: "e"})        //nolint:errcheck // it may not exist
			_, err := s.TTRPCTaskService.Delete(timeout(t), &task.DeleteRequest{ID: s.id})
			if err == nil || status.Code(err) == codes.NotFound {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v: the container can't be deleted: %v", failure, err)
			}
		}
	}
	if err := s.lead(t); err != nil {
		t.Errorf("after %v: the container can't be made again: %v", failure, err)
	}
}
