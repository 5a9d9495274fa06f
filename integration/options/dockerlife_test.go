package options

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// up starts a container in the background; without an image among the arguments it sleeps.
func up(t *testing.T, runtime string, args ...string) string {
	t.Helper()
	named := false
	for _, a := range args {
		named = named || a == image
	}
	if !named {
		args = append(args, image, "sleep", "1000")
	}
	return engine.Up(t, harness.Peer{Name: runtime}, args...)
}

// eventually repeats a command until it succeeds, for a server that is just starting.
func eventually(t *testing.T, args ...string) harness.Result {
	t.Helper()
	var r harness.Result
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if r = engine.Do(t, args...); r.Exit == 0 {
			break
		}
	}
	return r
}

func newNetwork(t *testing.T) string {
	t.Helper()
	name := box.ID()
	engine.Must(t, "network", "create", name)
	t.Cleanup(func() { engine.Must(t, "network", "rm", name) })
	return name
}

func inspect(t *testing.T, name, format string) string {
	t.Helper()
	return engine.Must(t, "inspect", "--format", format, name)
}

// waitInspect waits until a field of a container has a value, and returns the last one.
func waitInspect(t *testing.T, name, format, want string) string {
	t.Helper()
	var got string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if got = inspect(t, name, format); got == want {
			break
		}
	}
	return got
}

// operation is a row that works on a container which sleeps.
func operation(option, prints string, do func(t *testing.T, c string) harness.Result, flags ...string) row {
	return row{engine: "docker", option: option, prints: prints, do: func(t *testing.T, runtime string) harness.Result {
		return do(t, up(t, runtime, flags...))
	}}
}

func dockerOperations() []row {
	in := func(t *testing.T, c, script string) string {
		t.Helper()
		return engine.Do(t, "exec", c, "sh", "-c", script).Stdout
	}
	const file = "{{.State.Status}}"
	return []row{
		operation("`exec`, with `-u -w -e`", `^1\n/etc\n1000`, func(t *testing.T, c string) harness.Result {
			return engine.Do(t, "exec", "-e", "A=1", "-w", "/etc", "-u", "app", c, "sh", "-c", "echo $A; pwd; id -u; exit 5")
		}),
		operation("`exec -d`", `^up`, func(t *testing.T, c string) harness.Result {
			engine.Must(t, "exec", "-d", c, "sh", "-c", "echo up >/tmp/up")
			return eventually(t, "exec", c, "cat", "/tmp/up")
		}),
		failing(operation("`exec --privileged`", "", func(t *testing.T, c string) harness.Result {
			r := engine.Do(t, "exec", "--privileged", c, "sh", "-c", "echo ran")
			return harness.Result{Exit: r.Exit, Stderr: r.Stdout + r.Stderr} // each runtime has its own words
		}), lacking, `operation not permitted`),
		operation("`cp` in and out", `^one\none`, func(t *testing.T, c string) harness.Result {
			dir := box.TempDir(t)
			if err := os.WriteFile(filepath.Join(dir, "f"), []byte("one\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			engine.Must(t, "cp", filepath.Join(dir, "f"), c+":/tmp/f")
			engine.Must(t, "cp", c+":/tmp/f", filepath.Join(dir, "g"))
			data, err := os.ReadFile(filepath.Join(dir, "g"))
			if err != nil {
				t.Fatal(err)
			}
			return result(strings.TrimSpace(in(t, c, "cat /tmp/f")), string(data))
		}),
		operation("`diff`", `(?s)C /tmp.*A /tmp/made`, func(t *testing.T, c string) harness.Result {
			in(t, c, "touch /tmp/made")
			return engine.Do(t, "diff", c)
		}),
		operation("`commit`", `^made`, func(t *testing.T, c string) harness.Result {
			in(t, c, "echo made >/made")
			name := "committed:" + box.ID()
			engine.Must(t, "commit", c, name)
			t.Cleanup(func() { engine.Must(t, "rmi", name) })
			return engine.Do(t, "run", "--rm", name, "cat", "/made")
		}),
		operation("`pause`, `unpause`", `^paused\nrunning`, func(t *testing.T, c string) harness.Result {
			engine.Must(t, "pause", c)
			paused := inspect(t, c, file)
			engine.Must(t, "unpause", c)
			return result(paused, inspect(t, c, file))
		}),
		operation("`update --memory --cpus --pids-limit`", `33554432`, func(t *testing.T, c string) harness.Result {
			engine.Must(t, "update", "--memory", "32m", "--memory-swap", "32m", "--cpus", "0.5", "--pids-limit", "44", c)
			return result(in(t, c, "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"))
		}, "--memory", "64m", "--memory-swap", "64m"),
		operation("`stats`, `top`", `^true\ntrue`, func(t *testing.T, c string) harness.Result {
			stats := engine.Must(t, "stats", "--no-stream", "--format", "{{.MemUsage}} {{.PIDs}}", c)
			return result(strings.HasSuffix(stats, " 1"), strings.Contains(engine.Must(t, "top", c), "sleep 1000"))
		}),
		operation("`restart`, `kill`, `wait`", `^running\n137`, func(t *testing.T, c string) harness.Result {
			engine.Must(t, "restart", "-t", "0", c)
			running := inspect(t, c, file)
			engine.Must(t, "kill", c)
			return result(running, engine.Must(t, "wait", c))
		}),
		operation("`rename`, `export`", `etc/passwd`, func(t *testing.T, c string) harness.Result {
			return box.Run(t, harness.Cmd{Args: []string{"sh", "-c", strings.Join(engine.Args("export", c), " ") + " | tar -t | grep -x etc/passwd"}})
		}),
		operation("`checkpoint create` of a daemon with experiments; the container runs on", `^true\nrunning`, func(t *testing.T, c string) harness.Result {
			return result(engine.Do(t, "checkpoint", "create", c, "one").Exit != 0, inspect(t, c, file))
		}),
		operation("`--health-cmd`", `^healthy`, func(t *testing.T, c string) harness.Result {
			return result(waitInspect(t, c, "{{.State.Health.Status}}", "healthy"))
		}, "--health-cmd", "test -e /etc/passwd", "--health-interval", "200ms"),
		{engine: "docker", option: "`--restart on-failure:2`", prints: `^2`, do: func(t *testing.T, runtime string) harness.Result {
			c := up(t, runtime, "--restart", "on-failure:2", image, "false")
			return result(waitInspect(t, c, "{{.RestartCount}}", "2"))
		}},
		{engine: "docker", option: "`attach`", prints: `^6\ntrue`, do: func(t *testing.T, runtime string) harness.Result {
			c := up(t, runtime, image, "sh", "-c", "for i in $(seq 100); do echo tick; sleep 0.1; done; exit 6")
			r := engine.Do(t, "attach", "--no-stdin", c)
			return result(r.Exit, strings.Contains(r.Stdout, "tick"))
		}},
		{engine: "docker", option: "`events`", prints: `create\nattach\nstart\ndie`, do: func(t *testing.T, runtime string) harness.Result {
			name := box.ID()
			engine.Must(t, "run", "--rm", "--runtime", runtime, "--name", name, image, "true")
			// The daemon writes its last event beside its answer.
			var r harness.Result
			for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
				r = engine.Do(t, "events", "--since", "2m", "--until", "0s", "--filter", "container="+name, "--format", "{{.Action}}")
				if strings.Contains(r.Stdout, "destroy") {
					break
				}
			}
			return r
		}},
	}
}
