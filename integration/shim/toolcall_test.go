package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestBenchToolCall prints what a tool call of `true` costs in a warm container beside a bare exec of it through the shim
// (no streams, no daemon between), by turns, on the same root file system under the same profile. The target on a quiet
// machine is 1.5 times, and 12 ms.
func TestBenchToolCall(t *testing.T) {
	if os.Getenv("AGENTSAFE_BENCH_EVIDENCE") == "" {
		t.Skip("probe AGENTSAFE_BENCH_EVIDENCE: not set (make bench-evidence sets it)")
	}
	busybox, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	s := startShim(t, newDaemon(t), harness.Sh("sleep 1000"))
	s.run(t)
	spec, serial := execSpec(t, "/bin/true"), 0
	bare := func() {
		serial++
		id := "e" + strconv.Itoa(serial)
		if _, err := s.Exec(timeout(t), &task.ExecProcessRequest{ID: s.id, ExecID: id, Spec: spec}); err != nil {
			t.Fatal(err)
		}
		s.start(t, id)
		if code := s.wait(t, id); code != 0 {
			t.Fatalf("true ends with %d", code)
		}
		s.delete(t, id)
	}
	connect := func(args ...string) func() {
		cmd := exec.Command(filepath.Join(filepath.Dir(shimPath()), "agentsafectl"), append([]string{"--data-dir", filepath.Join(box.Dir, "data"), "mcp", "--rootfs", busybox.Rootfs, "--user", "0"}, args...)...)
		cmd.Stderr = os.Stderr
		client := mcp.NewClient(&mcp.Implementation{Name: "bench"}, nil)
		session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: 30 * time.Second}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := session.Close(); err != nil {
				t.Error(err)
			}
		})
		call := &mcp.CallToolParams{Name: "exec_sandboxed_command", Arguments: map[string]any{"command": "/bin/true", "args": []string{}}}
		return func() {
			if r, err := session.CallTool(t.Context(), call); err != nil || r.IsError {
				t.Fatalf("%+v, %v", r, err)
			}
		}
	}
	workspace := box.TempDir(t)
	contenders := []struct {
		name  string
		once  func()
		times []time.Duration
	}{
		{name: "exec through the shim", once: bare},
		{name: "tool call", once: connect("--workspace-mode", "profile")},
		{name: "tool call with a transaction", once: connect("--workspace", workspace)},
	}
	const rounds = 200
	for range rounds {
		for i := range contenders {
			began := time.Now()
			contenders[i].once()
			contenders[i].times = append(contenders[i].times, time.Since(began))
		}
	}
	var first time.Duration
	for i := range contenders {
		c := &contenders[i]
		slices.Sort(c.times)
		median, ratio := c.times[rounds/2], ""
		if i == 0 {
			first = median
		} else {
			ratio = fmt.Sprintf("  x %.2f", float64(median)/float64(first))
		}
		t.Logf("true, %-29s median %6.2f ms, least %6.2f ms%s", c.name+":", ms(median), ms(c.times[0]), ratio)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
