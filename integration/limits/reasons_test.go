package limits

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

const (
	tooMuch = "head -c 200m /dev/zero | tail -c 150m >/dev/null"
	tooMany = "i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; wait"
)

// waitFor polls until there is an event of a type in what `agentsafe events` has printed.
func waitFor(t *testing.T, events *harness.Running, kind string) json.RawMessage {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		for line := range strings.Lines(events.Output()) {
			var e struct {
				Type string
				Data json.RawMessage
			}
			if json.Unmarshal([]byte(line), &e) == nil && e.Type == kind {
				return e.Data
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no event %q in %d bytes of them", kind, len(events.Output()))
		}
	}
}

// TestEvents: each limit has an event of its own.
func TestEvents(t *testing.T) {
	d := box.Bare(t, harness.Peer{Name: "few", Path: wrapper("few")})
	bundle := d.Up(t, nil)
	events := box.Start(t, harness.Cmd{Args: d.Args("events", "--interval", "1s", bundle.ID)})
	waitFor(t, events, "stats")
	d.Do(t, "exec", bundle.ID, "sh", "-c", tooMuch)
	waitFor(t, events, "oom")
	d.Do(t, "exec", bundle.ID, "sh", "-c", tooMany)
	if data := waitFor(t, events, "pids"); !strings.Contains(string(data), "refused") {
		t.Errorf("pids: %s", data)
	}
	d.Must(t, "delete", "--force", bundle.ID)
	events.Wait(t)

	d = box.Bare(t, harness.Peer{Name: "wall", Path: wrapper("wall")})
	bundle = d.Create(t, func(s *specs.Spec) { s.Process.Args = []string{"sh", "-c", stubborn} })
	events = box.Start(t, harness.Cmd{Args: d.Args("events", "--interval", "1s", bundle.ID)})
	waitFor(t, events, "stats")
	d.Must(t, "start", bundle.ID)
	if data := waitFor(t, events, "limit"); !strings.Contains(string(data), `"reason":"wall-clock"`) {
		t.Errorf("limit: %s", data)
	}
	d.WaitStatus(t, bundle.ID, "stopped")
	d.Must(t, "delete", bundle.ID)
	events.Wait(t)
}

// TestStatus: Docker is told of want of memory in its own words, and does not take anything else for it. (Podman 4.3 says
// nothing of it here, under runc neither.)
func TestStatus(t *testing.T) {
	reloaded.Do(func() { reloadDocker(t) })
	for _, c := range []struct{ profile, script, want string }{
		{"few", "exec " + tooMuch, "137 true"},
		{"few", tooMany, "2 false"},
		{"wall", stubborn, "137 false"},
	} {
		id := box.ID()
		docker.Do(t, "run", "--name", id, "--network", "none", "--runtime", c.profile, image, "sh", "-c", c.script)
		if got := docker.Must(t, "inspect", "--format", "{{.State.ExitCode}} {{.State.OOMKilled}}", id); got != c.want {
			t.Errorf("%s of %s: %s, want %s", c.script, c.profile, got, c.want)
		}
		docker.Must(t, "rm", id)
	}
}

// TestStatus_OurShim: containerd gets an event for want of memory, before the task's exit, and none for other limits.
func TestStatus_OurShim(t *testing.T) {
	events := box.Start(t, harness.Cmd{Args: containerd.Args("events")})
	defer events.Stop(t)
	run := func(profile, script string) string {
		id := box.ID()
		containerd.Do(t, "run", "--rm", "--runtime", shimPath(profile), "docker.io/library/"+image, id, "sh", "-c", script)
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			var topics []string
			for line := range strings.Lines(events.Output()) {
				if _, after, ok := strings.Cut(line, "/tasks/"); ok && strings.Contains(line, id) {
					topics = append(topics, strings.Fields(after)[0])
				}
			}
			if all := strings.Join(topics, " "); strings.Contains(all, "exit") || time.Now().After(deadline) {
				return all
			}
		}
	}
	if got := run("few", tooMuch+"; exit $?"); !strings.Contains(got, "oom exit") {
		t.Errorf("want of memory: %s", got)
	}
	for profile, script := range map[string]string{"few": tooMany, "wall": stubborn} {
		if got := run(profile, script); strings.Contains(got, "oom") || !strings.Contains(got, "exit") {
			t.Errorf("%s: %s", profile, got)
		}
	}
}
