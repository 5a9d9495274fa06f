package containerd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func exact(code int, prints string) harness.Comparison {
	return harness.All(harness.Same, harness.Exits(code), harness.Prints(prints))
}

func TestRun(t *testing.T) {
	for _, tc := range []struct {
		name    string
		flags   []string
		command []string
		stdin   string
		tty     bool
		compare harness.Comparison
	}{
		{name: "output and exit code", command: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, compare: exact(3, "^out\n$")},
		{name: "stdin", command: []string{"sh", "-c", "read a; echo $a"}, stdin: "through\n", compare: exact(0, "^through\n$")},
		{name: "terminal", flags: []string{"--tty"}, command: []string{"sh", "-c", "tty; exit 4"}, tty: true, compare: exact(4, "/dev/pts/0")},
		{name: "settings", flags: []string{"--env", "A=b", "--cwd", "/etc", "--memory-limit", "67108864"}, command: []string{"sh", "-c", "echo $A; pwd"}, compare: exact(0, "^b\n/etc\n$")},
		{name: "read only", flags: []string{"--read-only"}, command: []string{"sh", "-c", "touch /x; echo $?"}, compare: exact(0, "^1\n$")},
		{name: "no such command", command: []string{"no-such-command"}, compare: harness.All(harness.SameExit, harness.ErrorHas("executable file not found in \\$PATH"))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				args := engine.RunArgs(p, append([]string{"--rm"}, tc.flags...), harness.BusyboxName, box.ID(), tc.command...)
				return box.Run(t, harness.Cmd{Args: args, Stdin: tc.stdin, TTY: tc.tty})
			}, tc.compare)
		})
	}
}

func status(t *testing.T, id string) string {
	t.Helper()
	for line := range strings.Lines(engine.Must(t, "tasks", "list")) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == id {
			return f[2]
		}
	}
	return "none"
}

func waitStatus(t *testing.T, id, want string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); status(t, id) != want; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s is %s, want %s", id, status(t, id), want)
		}
	}
}

func TestLife(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		id := box.ID()
		r := box.Run(t, harness.Cmd{Args: engine.RunArgs(p, []string{"--detach"}, harness.BusyboxName, id, "sleep", "1000")})
		if r.Exit != 0 {
			t.Fatal(r)
		}
		t.Cleanup(func() { engine.Do(t, "containers", "delete", id) })
		t.Cleanup(func() { engine.Do(t, "tasks", "delete", "--force", id) })
		var seen strings.Builder
		fmt.Fprintln(&seen, status(t, id))
		exec := engine.Do(t, "tasks", "exec", "--exec-id", "e1", id, "sh", "-c", "echo in; exit 6")
		fmt.Fprintln(&seen, exec.Exit, exec.Stdout)
		tty := box.Run(t, harness.Cmd{Args: engine.Args("tasks", "exec", "--tty", "--exec-id", "e2", id, "sh", "-c", "tty; sleep 1"), TTY: true})
		fmt.Fprintln(&seen, tty.Exit, tty.Stdout)
		engine.Must(t, "tasks", "pause", id)
		fmt.Fprintln(&seen, status(t, id))
		engine.Must(t, "tasks", "resume", id)
		fmt.Fprintln(&seen, status(t, id))
		fmt.Fprintln(&seen, len(strings.Split(engine.Must(t, "tasks", "ps", id), "\n")))
		fmt.Fprintln(&seen, strings.Contains(engine.Must(t, "tasks", "metrics", id), "memory"))
		engine.Must(t, "tasks", "kill", "--signal", "SIGKILL", id)
		waitStatus(t, id, "STOPPED")
		gone := engine.Do(t, "tasks", "delete", id)
		fmt.Fprintln(&seen, gone.Exit)
		return harness.Result{Stdout: seen.String()}
	}, exact(0, `(?s)^RUNNING\n6 in\n\n0 /dev/pts/\d.*\nPAUSED\nRUNNING\n2\ntrue\n0\n$`))
}
