package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func TestExec(t *testing.T) {
	// One container per runtime: what one exec does must not show in another.
	name := map[string]string{}
	for _, runtime := range []string{"runc", "agentsafe"} {
		name[runtime] = engine.Up(t, harness.Peer{Name: runtime}, "-e", "B=2", image, "sleep", "1000")
	}
	for _, tc := range []runCase{
		{name: "output and exit code", command: sh("echo out; echo err >&2; exit 6"), compare: harness.All(exact(6, "^out\n$"), harness.ErrorHas("err"))},
		{name: "stdin", flags: []string{"-i"}, command: sh("cat"), stdin: "through\n", compare: exact(0, "^through\n$")},
		{name: "terminal", flags: []string{"-i", "-t"}, command: sh("tty; " + size + "; exit 2"), tty: true, compare: exact(2, `(?s)/dev/pts/\d.*24 80`)},
		{name: "environment and directory", flags: []string{"-e", "A=1", "-w", "/etc"}, command: sh("echo $A $B; pwd"), compare: exact(0, "^1 2\n/etc\n$")},
		{name: "user", flags: []string{"-u", "app"}, command: sh("id; echo $HOME; grep CapEff /proc/self/status"), compare: exact(0, "(?s)uid=1000.*CapEff:\t0000000000000000")},
		{name: "same cgroup as the first process", command: sh("cmp /proc/1/cgroup /proc/self/cgroup && echo same"), compare: exact(0, "same")},
		{name: "sees the first process", command: sh("ps -o pid,args | grep -c '1 [s]leep'"), compare: exact(0, "^1\n$")},
		{name: "signals the first process", command: sh("kill -0 1 && echo may"), compare: exact(0, "may")},
		{name: "killed by a signal", command: sh("kill -TERM $$"), compare: exact(143, "")},
		{name: "no such command", command: []string{"no-such-command"}, compare: harness.All(harness.SameExit, harness.ErrorHas("executable file not found in \\$PATH"))},
		{name: "not executable", command: []string{"/etc/passwd"}, compare: harness.All(harness.SameExit, harness.ErrorHas("permission denied"))},
		{name: "detached", flags: []string{"-d"}, command: sh("sleep 0.1"), compare: harness.Same},
		{name: "leaves a child behind", command: sh("sleep 1 >/dev/null 2>&1 & echo done"), compare: exact(0, "^done\n$")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				args := append(append([]string{"exec"}, tc.flags...), name[p.Name])
				return box.Run(t, harness.Cmd{Args: engine.Args(append(args, tc.command...)...), Stdin: tc.stdin, TTY: tc.tty})
			}, tc.compare)
		})
	}
}

// An exec process may be a Landlock domain of its own, so it is the host that compares its namespaces with the first
// process's, which the container could not read.
func TestExecJoinsTheNamespaces(t *testing.T) {
	kinds := []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"}
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		name := engine.Up(t, p, image, "sleep", "1000")
		pid := inspect(t, name, "{{.State.Pid}}")
		var first, second []string
		for _, kind := range kinds {
			ns, err := os.Readlink("/proc/" + pid + "/ns/" + kind)
			if err != nil {
				t.Fatal(err)
			}
			first = append(first, ns)
			second = append(second, "/proc/self/ns/"+kind)
		}
		r := engine.Do(t, append([]string{"exec", name, "sh", "-c", `for f in "$@"; do readlink $f; done`, "sh"}, second...)...)
		if want := strings.Join(first, "\n") + "\n"; r.Stdout != want {
			t.Errorf("the exec is in %q, the first process in %q", r.Stdout, want)
		}
		return harness.Result{Exit: r.Exit}
	}, harness.SameExit, harness.Exits(0))
}

// result is what a test of several steps has seen, as something to compare.
func result(lines ...any) harness.Result {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintln(&b, l)
	}
	return harness.Result{Stdout: b.String()}
}

func inspect(t *testing.T, name, format string) string {
	t.Helper()
	return engine.Must(t, "inspect", "--format", format, name)
}

const endState = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Error}}"

func TestLife(t *testing.T) {
	const trap = `trap "echo term; exit 9" TERM; trap "echo hup" HUP; echo up; while :; do sleep 0.05; done`
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, p harness.Peer) harness.Result
		want string
	}{
		{"stop, handled", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, image, "sh", "-c", trap)
			waitLog(t, name, "up")
			engine.Must(t, "stop", name)
			return result(inspect(t, name, endState), engine.Must(t, "logs", name))
		}, "exited 9"},
		{"stop, not handled", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, image, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
			waitLog(t, name, "up")
			engine.Must(t, "stop", "--time", "1", name)
			return result(inspect(t, name, endState))
		}, "exited 137"},
		{"kill", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, image, "sleep", "1000")
			engine.Must(t, "kill", name)
			return result(engine.Must(t, "wait", name), inspect(t, name, endState))
		}, "exited 137"},
		{"kill with a signal", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, image, "sh", "-c", trap)
			waitLog(t, name, "up")
			engine.Must(t, "kill", "--signal", "HUP", name)
			waitLog(t, name, "hup")
			again := engine.Do(t, "kill", "--signal", "NOSUCH", name)
			engine.Must(t, "kill", "--signal", "15", name)
			return result(again.Exit, engine.Must(t, "wait", name), inspect(t, name, endState))
		}, "exited 9"},
		{"restart", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, image, "sh", "-c", "echo start; exec sleep 1000")
			waitLog(t, name, "start")
			engine.Must(t, "exec", name, "touch", "/kept")
			engine.Must(t, "restart", "--time", "0", name)
			waitLog(t, name, "start\nstart")
			return result(inspect(t, name, "{{.State.Status}}"), engine.Must(t, "exec", name, "ls", "/kept"))
		}, "running\n/kept"},
		{"restart policy", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, "--restart", "on-failure:2", image, "sh", "-c", "echo try; exit 1")
			waitFor(t, func() bool { return inspect(t, name, "{{.RestartCount}} {{.State.Status}}") == "2 exited" })
			return result(engine.Must(t, "logs", name), inspect(t, name, endState))
		}, "try\ntry\ntry\n"},
		{"pause", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, image, "sleep", "1000")
			engine.Must(t, "pause", name)
			paused := inspect(t, name, "{{.State.Status}}")
			refused := engine.Do(t, "exec", name, "true")
			engine.Must(t, "unpause", name)
			return result(paused, refused.Exit, inspect(t, name, "{{.State.Status}}"), engine.Must(t, "exec", name, "echo", "thawed"))
		}, "paused\n1\nrunning\nthawed"},
		{"logs", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, image, "sh", "-c", "echo out; echo err >&2; seq 3000 | tail -1")
			engine.Must(t, "wait", name)
			r := engine.Do(t, "logs", name)
			return result(r.Stdout, r.Stderr)
		}, "out\n3000"},
		{"out of memory", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, "--memory", "16m", "--memory-swap", "16m", image, "sh", "-c", "exec tail /dev/zero")
			engine.Must(t, "wait", name)
			return result(inspect(t, name, endState))
		}, "exited 137 true"},
		{"cp", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, "--tmpfs", "/scratch", image, "sleep", "1000")
			dir := box.TempDir(t)
			if err := os.WriteFile(filepath.Join(dir, "f"), []byte("copied\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			engine.Must(t, "cp", filepath.Join(dir, "f"), name+":/root/f")
			seen := engine.Must(t, "exec", name, "cat", "/root/f")
			engine.Must(t, "exec", name, "sh", "-c", "echo back >/root/g")
			engine.Must(t, "cp", name+":/root/g", filepath.Join(dir, "g"))
			back, err := os.ReadFile(filepath.Join(dir, "g"))
			return result(seen, string(back), err, sorted(engine.Must(t, "diff", name)))
		}, "copied\nback"},
		{"top and stats", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, image, "sleep", "1000")
			return result(strings.Contains(engine.Must(t, "top", name), "sleep 1000"), engine.Must(t, "stats", "--no-stream", "--format", "{{.PIDs}}", name))
		}, "true\n1"},
		{"update", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, "--memory", "64m", image, "sleep", "1000")
			engine.Must(t, "update", "--memory", "32m", "--memory-swap", "32m", "--cpus", "0.25", "--pids-limit", "30", name)
			return result(engine.Must(t, "exec", name, "sh", "-c",
				"cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us pids/pids.max 2>/dev/null || cat memory.max cpu.max pids.max"))
		}, "33554432\n25000"},
		{"health check", func(t *testing.T, p harness.Peer) harness.Result {
			name := engine.Up(t, p, "--health-cmd", "test -e /tmp", "--health-interval", "200ms", image, "sleep", "1000")
			waitFor(t, func() bool { return inspect(t, name, "{{.State.Health.Status}}") == "healthy" })
			return result("healthy")
		}, "healthy"},
		{"create, then start and attach", func(t *testing.T, p harness.Peer) harness.Result {
			name := box.ID()
			engine.Must(t, "create", "--runtime", p.Name, "--name", name, image, "sh", "-c", "echo late; exit 8")
			t.Cleanup(func() { engine.Must(t, "rm", "-f", name) })
			r := engine.Do(t, "start", "--attach", name)
			return result(r.Exit, r.Stdout)
		}, "8\nlate"},
		{"signals reach through the client", func(t *testing.T, p harness.Peer) harness.Result {
			name := box.ID()
			run := box.Start(t, harness.Cmd{Args: engine.Args("run", "--rm", "--name", name, "--runtime", p.Name, image, "sh", "-c", trap)})
			waitFor(t, func() bool { return strings.Contains(run.Output(), "up") })
			if err := unix.Kill(run.Pid(), unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			r := run.Wait(t)
			return result(r.Exit, r.Stdout)
		}, "9\nup\nterm"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.SideBySide(t, tc.do, harness.Same, harness.Prints(tc.want))
		})
	}
}

func sorted(lines string) string {
	list := strings.Split(lines, "\n")
	slices.Sort(list)
	return strings.Join(list, "\n")
}

func waitLog(t *testing.T, name, text string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() { // before the container is removed: what its first process is about
			status, err := os.ReadFile("/proc/" + inspect(t, name, "{{.State.Pid}}") + "/status")
			t.Logf("waiting for %q, the log is %q, the first process (%v):\n%s", text, engine.Do(t, "logs", name).Stdout, err, status)
		}
	})
	waitFor(t, func() bool { return strings.Contains(engine.Must(t, "logs", name), text) })
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited for half a minute in vain")
		}
	}
}
