package stacks

import (
	"os"
	"strings"
	"testing"
)

// TestDaemonComesBack: containers of a daemon that goes on without them, or dies and comes back. With live-restore they
// run on meanwhile; without, those with a restart policy are started again.
func TestDaemonComesBack(t *testing.T) {
	for _, tc := range []struct {
		name       string
		live, kill bool
	}{
		{"live-restore, stopped", true, false},
		{"live-restore, killed", true, true},
		{"restart policies, stopped", false, false},
	} {
		if !tc.kill && os.Getenv("AGENTSAFE_TEST_LONG") == "" {
			continue // with less trouble; each takes an outage of its own
		}
		t.Run(tc.name, func(t *testing.T) {
			engine.Configure(t, map[string]any{"live-restore": tc.live})
			t.Cleanup(func() { engine.Configure(t, map[string]any{"live-restore": nil}) })
			// One outage for all runtimes: it is the same daemon.
			all := map[string]*survivors{}
			for _, runtime := range runtimes() {
				all[runtime] = newSurvivors(t, runtime)
			}
			engine.Down(t, tc.kill)
			away := map[string]string{}
			for _, runtime := range runtimes() {
				away[runtime] = all[runtime].away(tc.live)
			}
			engine.Again(t)
			var first string
			for i, runtime := range runtimes() {
				got := away[runtime] + all[runtime].back(tc.live)
				if i == 0 {
					first = got
					t.Logf("under runc:\n%s", got)
				} else if got != first {
					t.Errorf("not the same:\n--- runc\n%s--- %s\n%s", first, runtime, got)
				}
			}
		})
	}
}

// survivors are containers before, during and after an outage of the daemon.
type survivors struct {
	t *testing.T
	// lives ticks; ends is told to end while the daemon is away, with status 5; always is to be started again.
	lives, ends, always string
	pid, start          string
}

func newSurvivors(t *testing.T, runtime string) *survivors {
	t.Helper()
	s := &survivors{t: t}
	up := func(args ...string) string {
		name := box.ID()
		t.Cleanup(func() { engine.Do(t, "rm", "--force", "--volumes", name) })
		engine.Must(t, append([]string{"run", "--detach", "--runtime", runtime, "--name", name}, args...)...)
		return name
	}
	s.lives = up("-p", "127.0.0.1::80", small, "sh", "-c", "trap 'exit 9' TERM; probe serve :80 served & while :; do echo tick; sleep 0.1; done")
	s.ends = up(small, "sh", "-c", "trap 'exit 5' HUP; echo up; while :; do sleep 0.05; done")
	s.always = up("--restart", "always", small, "sh", "-c", "echo start; exec sleep 1000")
	eventually(t, "the containers run", func() bool {
		return strings.Contains(engine.Must(t, "logs", s.lives), "tick") && strings.Contains(engine.Must(t, "logs", s.ends), "up")
	})
	s.pid = inspect(t, s.lives, "{{.State.Pid}}")
	s.start = inspect(t, s.ends, "{{.State.Pid}}")
	return s
}

// away looks at the host while there is no daemon.
func (s *survivors) away(live bool) string {
	s.t.Helper()
	var out story
	_, err := os.Stat("/proc/" + s.pid)
	out.tell("runs without a daemon", err == nil)
	if live {
		box.MustRun(s.t, "kill", "-HUP", s.start)
		eventually(s.t, "the container that was told to end has ended", func() bool {
			data, err := os.ReadFile("/proc/" + s.start + "/stat")
			return err != nil || strings.Contains(string(data), ") Z ")
		})
	}
	return out.String()
}

// back works with the containers under the daemon that came back.
func (s *survivors) back(live bool) string {
	s.t.Helper()
	var out story
	t := s.t
	if !live {
		eventually(t, "the policy restarts its container", func() bool { return inspect(t, s.always, "{{.State.Status}}") == "running" })
		out.tell("restarted", engine.Must(t, "logs", s.always))
		out.tell("exec there", engine.Do(t, "exec", s.always, "echo", "in").Stdout)
		out.tell("others", inspect(t, s.lives, "{{.State.Status}} {{.State.ExitCode}}"))
		engine.Must(t, "start", s.lives)
		eventually(t, "it ticks again", func() bool { return inspect(t, s.lives, "{{.State.Running}}") == "true" })
		engine.Must(t, "stop", "--time", "10", s.lives)
		out.tell("started and stopped", inspect(t, s.lives, "{{.State.ExitCode}}"))
		return out.String()
	}
	out.tell("the same process", inspect(t, s.lives, "{{.State.Status}} {{.State.Pid}}") == "running "+s.pid)
	eventually(t, "the daemon knows of the end", func() bool { return inspect(t, s.ends, "{{.State.Status}}") == "exited" })
	out.tell("ended meanwhile", inspect(t, s.ends, "{{.State.ExitCode}}"))
	r := engine.Do(t, "exec", s.lives, "sh", "-c", "echo in; exit 3")
	out.tell("exec", r.Exit, r.Stdout)
	before := len(engine.Must(t, "logs", s.lives))
	eventually(t, "its output arrives", func() bool { return len(engine.Must(t, "logs", s.lives)) > before })
	out.tell("published port", get(t, "http://"+engine.Must(t, "port", s.lives, "80")))
	engine.Must(t, "pause", s.lives)
	out.tell("paused", inspect(t, s.lives, "{{.State.Status}}"))
	engine.Must(t, "unpause", s.lives)
	engine.Must(t, "update", "--pids-limit", "50", s.lives)
	engine.Must(t, "stop", "--time", "10", s.lives)
	out.tell("stopped", inspect(t, s.lives, "{{.State.Status}} {{.State.ExitCode}}"))
	out.tell("always", inspect(t, s.always, "{{.State.Status}} {{.RestartCount}}"))
	return out.String()
}
