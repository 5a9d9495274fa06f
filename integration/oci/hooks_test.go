package oci

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// noting is a hook that appends its name and the state it is given to a file on the host.
func noting(file, name string) specs.Hook {
	script := fmt.Sprintf(`read state; echo "%s $(echo "$state" | grep -o '"status": *"[a-z]*"' | tr -d ' ') $A" >>%s`, name, file)
	return specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"A=env", "PATH=/usr/bin:/bin"}}
}

func TestHooks(t *testing.T) {
	_, ours := harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		dir := box.TempDir(t)
		file := filepath.Join(dir, "hooks")
		// startContainer runs in the container's file system, so the file must be there as well.
		bundle := box.Bundle(t, func(s *specs.Spec) {
			s.Process.Args = []string{"sh", "-c", "echo process >>" + file}
			s.Mounts = append(s.Mounts, specs.Mount{Destination: dir, Type: "bind", Source: dir, Options: []string{"bind"}})
			s.Hooks = &specs.Hooks{
				Prestart:        []specs.Hook{noting(file, "prestart")}, //nolint:staticcheck // Docker uses it
				CreateRuntime:   []specs.Hook{noting(file, "createRuntime"), noting(file, "createRuntime2")},
				CreateContainer: []specs.Hook{noting(file, "createContainer")},
				StartContainer:  []specs.Hook{noting(file, "startContainer")},
				Poststart:       []specs.Hook{noting(file, "poststart")},
				Poststop:        []specs.Hook{noting(file, "poststop")},
			}
		})
		note := func(what string) {
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			fmt.Fprintln(f, what)
		}
		note("create")
		d.Must(t, "create", "--bundle", bundle.Dir, bundle.ID)
		note("start")
		d.Must(t, "start", bundle.ID)
		d.WaitStatus(t, bundle.ID, "stopped")
		note("delete")
		d.Must(t, "delete", bundle.ID)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// poststart and the process itself run at the same time.
		var lines []string
		for line := range strings.Lines(string(data)) {
			if !strings.HasPrefix(line, "process") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		if !strings.Contains(string(data), "process\n") {
			t.Error("the process did not run")
		}
		return result(strings.Join(lines, "\n"))
	}, harness.SameExit)
	// runc 1.1 runs poststart in create, which no version of the specification says: the order is compared with that.
	want := strings.Join([]string{
		"create", `prestart "status":"creating" env`, `createRuntime "status":"creating" env`, `createRuntime2 "status":"creating" env`,
		`createContainer "status":"creating" env`, "start", `startContainer "status":"created" env`, `poststart "status":"running" env`,
		"delete", `poststop "status":"stopped" env`, "",
	}, "\n")
	if ours.Stdout != want {
		t.Errorf("hooks ran as %q, want %q", ours.Stdout, want)
	}
}

func TestHookNamespaces(t *testing.T) {
	where := func(file string) specs.Hook {
		return specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "cat >/dev/null; readlink /proc/self/ns/mnt /proc/self/ns/net >" + file + "; grep NoNewPrivs /proc/self/status >>" + file}}
	}
	_, p := harness.Peers(t)
	d, dir := box.Bare(t, p), box.TempDir(t)
	d.RunSpec(t, func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{
			CreateRuntime:   []specs.Hook{where(dir + "/runtime")},
			CreateContainer: []specs.Hook{where(dir + "/container")},
		}
	})
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	host := box.MustRun(t, "readlink", "/proc/self/ns/mnt", "/proc/self/ns/net")
	if got := read("runtime"); !strings.HasPrefix(got, host+"\n") {
		t.Errorf("createRuntime runs in %q, want the runtime's namespaces %q", got, host)
	}
	hostLines, got := strings.Split(host, "\n"), strings.Split(read("container"), "\n")
	if got[0] == hostLines[0] || got[1] == hostLines[1] {
		t.Errorf("createContainer runs in %q, want the container's namespaces", got)
	}
}

func TestFailingHooks(t *testing.T) {
	fail := []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "echo the hook says no >&2; exit 3"}}}
	slow, second := []specs.Hook{{Path: "/bin/sleep", Args: []string{"sleep", "30"}}}, 1
	slow[0].Timeout = &second
	for _, tc := range []struct {
		name  string
		hooks specs.Hooks
		want  string
	}{
		{"prestart", specs.Hooks{Prestart: fail}, "hook"}, //nolint:staticcheck // Docker uses it
		{"createRuntime", specs.Hooks{CreateRuntime: fail}, "hook"},
		{"createContainer", specs.Hooks{CreateContainer: fail}, "hook"},
		{"startContainer", specs.Hooks{StartContainer: fail}, "hook"},
		{"poststart", specs.Hooks{Poststart: fail}, "hook"},
		{"too slow", specs.Hooks{CreateRuntime: slow}, "hook"},
		{"missing", specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/nosuch"}}}, "hook|/nosuch"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				before := snapshot(t)
				d := box.Bare(t, p)
				r := d.RunSpec(t, func(s *specs.Spec) {
					s.Process.Args = []string{"sleep", "1"}
					s.Hooks = &tc.hooks
				})
				nothingLeft(t, p, before, d)
				return result(r.Exit != 0, r.Stderr != "")
			}, harness.Same, harness.Prints("^true\ntrue\n"))
		})
	}
	t.Run("poststop is only a warning", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			return box.Bare(t, p).RunSpec(t, func(s *specs.Spec) { s.Hooks = &specs.Hooks{Poststop: fail} })
		}, harness.SameExit, harness.Exits(0))
	})
}

// TestHangingHook: a hook without an end and without a time limit of its own keeps create waiting, as under runc. Whoever
// waits no longer tells create to end: the hook ends with it, and nothing is left.
func TestHangingHook(t *testing.T) {
	_, ours := harness.Peers(t)
	for _, kind := range []string{"createRuntime", "createContainer"} {
		t.Run(kind, func(t *testing.T) {
			before := snapshot(t)
			d := box.Bare(t, ours)
			began := filepath.Join(box.TempDir(t), "began")
			hang := []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "touch " + began + "; exec sleep 1000"}, Env: []string{"PATH=/usr/bin:/bin"}}}
			b := box.Bundle(t, func(s *specs.Spec) {
				s.Mounts = append(s.Mounts, specs.Mount{Destination: filepath.Dir(began), Type: "bind", Source: filepath.Dir(began), Options: []string{"bind"}})
				if s.Hooks = (&specs.Hooks{CreateRuntime: hang}); kind == "createContainer" {
					s.Hooks = &specs.Hooks{CreateContainer: hang}
				}
			})
			args := d.Args("create", "--bundle", b.Dir, b.ID)
			create := exec.Command(args[0], args[1:]...)
			if err := create.Start(); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- create.Wait() }()
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(began); err == nil {
					break
				}
				if time.Now().After(deadline) {
					create.Process.Kill() //nolint:errcheck // the test has failed
					t.Fatal("the hook does not begin")
				}
			}
			if err := create.Process.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				if err == nil {
					t.Error("create was told to end and has succeeded")
				}
			case <-time.After(time.Minute):
				create.Process.Kill() //nolint:errcheck // the test has failed
				t.Error("create waits for the hook although it was told to end")
			}
			d.Must(t, "delete", "--force", b.ID)
			nothingLeft(t, ours, before, d)
		})
	}
}

func snapshot(t *testing.T) harness.Snapshot {
	t.Helper()
	s, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// nothingLeft wants the machine to be as before and the state directory to be empty. Only our runtime is judged.
func nothingLeft(t *testing.T, p harness.Peer, before harness.Snapshot, d *harness.Bare) {
	t.Helper()
	if p.Name != "agentsafe" {
		return
	}
	if left := box.Leftovers(before); len(left) > 0 {
		t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
	}
	if entries, err := os.ReadDir(d.Root); err == nil && len(entries) > 0 {
		t.Errorf("left in the state directory: %v", entries)
	}
}
