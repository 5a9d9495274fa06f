package oci

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func notify(names ...string) []specs.LinuxSyscall {
	return []specs.LinuxSyscall{{Names: names, Action: specs.ActNotify}}
}

// listenForCalls answers every call that it is asked about with ENOMEDIUM, and keeps what it was told of each process.
func listenForCalls(t *testing.T) (path string, told func() []specs.ContainerProcessState) {
	t.Helper()
	path = filepath.Join(box.TempDir(t), "l")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var lock sync.Mutex
	var states []specs.ContainerProcessState
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return // the test is over
			}
			data, control := make([]byte, 4096), make([]byte, 64)
			n, cn, _, _, err := conn.ReadMsgUnix(data, control)
			conn.Close()
			if err != nil || n == 0 {
				continue
			}
			var s specs.ContainerProcessState
			if err := json.Unmarshal(data[:n], &s); err != nil {
				t.Errorf("%v: %s", err, data[:n])
			}
			lock.Lock()
			states = append(states, s)
			lock.Unlock()
			messages, err := unix.ParseSocketControlMessage(control[:cn])
			if err != nil || len(messages) != 1 {
				t.Errorf("control messages: %v, %v", messages, err)
				continue
			}
			fds, err := unix.ParseUnixRights(&messages[0])
			if err != nil || len(fds) != 1 {
				t.Errorf("descriptors: %v, %v", fds, err)
				continue
			}
			go answer(os.NewFile(uintptr(fds[0]), "listener"))
		}
	}()
	return path, func() []specs.ContainerProcessState {
		lock.Lock()
		defer lock.Unlock()
		return append([]specs.ContainerProcessState(nil), states...)
	}
}

// answer ends when the last process of the filter has.
func answer(listener *os.File) {
	defer listener.Close()
	for {
		poll := []unix.PollFd{{Fd: int32(listener.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && err != unix.EINTR {
			return
		}
		if poll[0].Revents&unix.POLLHUP != 0 {
			return
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			continue
		}
		n, err := harness.ReceiveNotification(listener)
		if err == nil {
			harness.AnswerNotification(listener, n, unix.ENOMEDIUM) //nolint:errcheck // its process may have ended
		}
	}
}

// TestSeccompListener: the engine's filter hands calls to a process of the host's, for the first process and for execs; it
// is told which process it is. Under the profile agent, too: there the profile's own answer to a call is the stricter one.
func TestSeccompListener(t *testing.T) {
	runc, ours := harness.Peers(t)
	none, agent := plain(t, ours), box.Bare(t, ours)
	for name, d := range map[string]*harness.Bare{"runc": box.Bare(t, runc), "none": none, "agent": agent} {
		t.Run(name, func(t *testing.T) {
			path, told := listenForCalls(t)
			c := d.Up(t, func(s *specs.Spec) {
				s.Linux.Seccomp = &specs.LinuxSeccomp{
					DefaultAction: specs.ActAllow, ListenerPath: path, ListenerMetadata: "meta", Syscalls: notify("mkdir", "mkdirat"),
				}
				s.Process.Args = []string{"sh", "-c", "mkdir /tmp/first 2>/tmp/said; sleep 1000"}
			})
			const try = "until test -s /tmp/said; do sleep 0.1; done; cat /tmp/said; mkdir /tmp/second 2>&1; test ! -e /tmp/first -a ! -e /tmp/second && echo neither"
			out := d.Must(t, "exec", c.ID, "sh", "-c", try)
			if strings.Count(out, "No medium found") != 2 || !strings.Contains(out, "neither") {
				t.Errorf("inside: %q", out)
			}
			states := told()
			if len(states) != 2 {
				t.Fatalf("told of %d processes: %+v", len(states), states)
			}
			first := states[0]
			if first.Pid != d.State(t, c.ID).Pid || first.Metadata != "meta" || len(first.Fds) != 1 || first.Fds[0] != specs.SeccompFdName || first.State.ID != c.ID {
				t.Errorf("told of the first process: %+v", first)
			}
			if second := states[1]; second.Pid == first.Pid || second.Pid == 0 || second.State.Pid != first.Pid {
				t.Errorf("told of the exec: %+v", second)
			}
			d.Must(t, "delete", "--force", c.ID)
		})
	}
}
