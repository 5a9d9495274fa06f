package upgrade

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// drivers returns the older runtime and this one on the same state directory.
func drivers(t *testing.T, global ...string) (older, newer *harness.Bare) {
	t.Helper()
	dir := os.Getenv(envOlder)
	if dir == "" {
		t.Skip("probe history: " + os.Getenv(envProbe))
	}
	_, p := harness.Peers(t)
	newer = box.Bare(t, p)
	newer.Global = global
	second := *newer
	second.Peer.Path = filepath.Join(dir, "agentsafe")
	return &second, newer
}

func wantState(t *testing.T, d *harness.Bare, id, status string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		var s harness.State
		if err := json.Unmarshal([]byte(d.Must(t, "state", id)), &s); err != nil {
			t.Fatal(err)
		}
		if s.Status == status {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it is %s, want %s", s.Status, status)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestOlderContainers: every operation on containers that the version before this one has made.
func TestOlderContainers(t *testing.T) {
	for _, profile := range []string{"agent", "none"} {
		t.Run(profile, func(t *testing.T) {
			older, newer := drivers(t, "--profile", profile)
			t.Run("created", func(t *testing.T) { afterCreate(t, older, newer) })
			t.Run("running", func(t *testing.T) { whileRunning(t, older, newer, profile) })
			t.Run("paused", func(t *testing.T) {
				c := older.Up(t, nil)
				older.Must(t, "pause", c.ID)
				wantState(t, newer, c.ID, "paused")
				newer.Must(t, "resume", c.ID)
				wantState(t, newer, c.ID, "running")
				newer.Must(t, "delete", "--force", c.ID)
			})
			t.Run("never started", func(t *testing.T) {
				c := older.Create(t, nil)
				newer.Must(t, "delete", c.ID)
				if r := newer.Do(t, "state", c.ID); r.Exit == 0 {
					t.Errorf("it is still there:\n%v", r)
				}
			})
			t.Run("poststop hook", func(t *testing.T) {
				mark := filepath.Join(box.TempDir(t), "mark")
				c := older.Up(t, func(s *specs.Spec) {
					s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "cat >" + mark}}}}
				})
				newer.Must(t, "delete", "--force", c.ID)
				if data, err := os.ReadFile(mark); err != nil || !strings.Contains(string(data), c.ID) {
					t.Errorf("the hook got %q, %v", data, err)
				}
			})
		})
	}
}

func afterCreate(t *testing.T, older, newer *harness.Bare) {
	out := filepath.Join(box.TempDir(t), "out")
	c := older.Create(t, func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/out", Type: "bind", Source: filepath.Dir(out), Options: []string{"bind"}})
		s.Process.Args = []string{"sh", "-c", "echo started >/out/out; exit 3"}
	})
	wantState(t, newer, c.ID, "created")
	newer.Must(t, "start", c.ID)
	wantState(t, newer, c.ID, "stopped")
	if data, err := os.ReadFile(out); err != nil || string(data) != "started\n" {
		t.Errorf("the program wrote %q, %v", data, err)
	}
	newer.Must(t, "delete", c.ID)
}

func whileRunning(t *testing.T, older, newer *harness.Bare, profile string) {
	c := older.Up(t, func(s *specs.Spec) {
		s.Linux.Resources.Pids = &specs.LinuxPids{Limit: new(int64(100))}
	})
	wantState(t, newer, c.ID, "running")
	if list := newer.Must(t, "list", "-q"); !strings.Contains(list, c.ID) {
		t.Errorf("not listed: %s", list)
	}
	r := newer.Do(t, "exec", "--env", "A=b", c.ID, "sh", "-c", "echo $A; grep Seccomp: /proc/self/status; cmp /proc/1/cgroup /proc/self/cgroup; exit 4")
	want := map[string]string{"agent": "^b\nSeccomp:\t2\n$", "none": "^b\nSeccomp:\t0\n$"}[profile]
	if r.Exit != 4 || !regexp.MustCompile(want).MatchString(r.Stdout) {
		t.Errorf("exec: want status 4 and %s\n%v", want, r)
	}
	newer.Must(t, "update", "--pids-limit", "50", c.ID)
	if got := newer.Must(t, "exec", c.ID, "sh", "-c", "cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max"); got != "50" {
		t.Errorf("the limit of processes is %s, want 50", got)
	}
	if got := newer.Must(t, "ps", "--format", "json", c.ID); !strings.HasPrefix(got, "[") || strings.Count(got, ",") != 0 {
		t.Errorf("processes: %s, want one", got)
	}
	if got := newer.Must(t, "events", "--stats", c.ID); !strings.Contains(got, `"pids"`) {
		t.Errorf("statistics: %s", got)
	}
	newer.Must(t, "kill", c.ID, "KILL")
	wantState(t, newer, c.ID, "stopped")
	newer.Must(t, "delete", c.ID)
}

// TestOlderSupervised: a container whose limits an older monitor holds, with a workspace in layers, and execs that are
// transactions of both versions.
func TestOlderSupervised(t *testing.T) {
	older, newer := drivers(t, "--profile", "offline")
	work := box.TempDir(t)
	c := older.Up(t, func(s *specs.Spec) {
		s.Annotations = map[string]string{"agentsafe.dev/wall-clock": "5m"}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/project", Type: "bind", Source: work, Options: []string{"rbind"}})
	})
	older.Must(t, "exec", c.ID, "sh", "-c", "echo older >/project/f")
	newer.Must(t, "exec", c.ID, "sh", "-c", "echo newer >>/project/f")
	if got := newer.Must(t, "exec", c.ID, "cat", "/project/f"); got != "older\nnewer" {
		t.Errorf("the workspace has %q", got)
	}
	if _, err := os.Stat(filepath.Join(work, "f")); err == nil {
		t.Error("the host's folder was written")
	}
	if r := newer.Do(t, "state", c.ID); !strings.Contains(r.Stdout, `"dev.agentsafe.profile": "offline"`) {
		t.Errorf("no policy in its state:\n%v", r)
	}
	newer.Must(t, "delete", "--force", c.ID)
}

// TestNewerState: what a later version wrote is refused by name, and only force removes it.
func TestNewerState(t *testing.T) {
	_, p := harness.Peers(t)
	d := box.Bare(t, p)
	c := d.Up(t, nil)
	file := filepath.Join(d.Root, c.ID, "state.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	next := regexp.MustCompile(`"version":\d+`).ReplaceAll(data, []byte(`"version":1000000`))
	if err := os.WriteFile(file, next, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"state", c.ID}, {"exec", c.ID, "true"}, {"kill", c.ID}, {"pause", c.ID}, {"delete", c.ID}} {
		r := d.Do(t, args...)
		if r.Exit == 0 || !strings.Contains(r.Stderr, "version 1000000") || !strings.Contains(r.Stderr, "newer agentsafe") {
			t.Errorf("want a refusal that names the version:\n%v", r)
		}
	}
	if r := d.Do(t, "list"); r.Exit != 0 {
		t.Errorf("one such container must not hide the others:\n%v", r)
	}
	d.Must(t, "delete", "--force", c.ID)
	if _, err := os.Stat(filepath.Dir(file)); err == nil {
		t.Error("its state is still there")
	}
}
