package layers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// session is an agent's work in a container of an engine: exec runs a script in it and returns its output, remove
// removes it.
type session struct {
	id     string
	exec   func(script string) string
	remove func()
}

// work edits, breaks, takes back and promotes, and wants the host's folder to be what was promoted and nothing else.
func work(t *testing.T, dir string, s session) {
	t.Helper()
	before := listing(t, dir)
	s.exec("echo two >>f; mkdir -p src; echo code >src/new")
	s.exec("rm -rf keep")
	if got := s.exec("cat f src/new; ls"); got != "one\ntwo\ncode\nf\nsrc" {
		t.Errorf("in the container: %q", got)
	}
	h := history(t, s.id)
	if len(h) != 3 || h[0].Status != "committed" || h[1].Changes != 1 {
		t.Fatalf("log: %+v", h)
	}
	for _, tx := range h {
		if tx.Exit == nil || *tx.Exit != 0 {
			t.Errorf("the exit status of transaction %d: %v", tx.N, tx.Exit)
		}
	}
	mustCtl(t, "undo", s.id+"@2")
	if got := s.exec("ls keep"); got != "k" {
		t.Errorf("after undo: %q", got)
	}
	if now := listing(t, dir); now != before {
		t.Errorf("the host's folder has changed:\n%s", now)
	}
	s.remove()
	mustCtl(t, "promote", s.id)
	want := strings.Replace(before, `f -rw-r--r-- "one\n"`, `f -rw-r--r-- "one\ntwo\n"`, 1) + "src drwxr-xr-x\nsrc/new -rw-r--r-- \"code\\n\"\n"
	if now := listing(t, dir); now != want {
		t.Errorf("promoted:\n%s\nwant:\n%s", now, want)
	}
	mustCtl(t, "layers", "rm", s.id)
}

var project = map[string]string{"f": "one\n", "keep/k": "k"}

func TestDocker(t *testing.T) {
	_, agentsafe := harness.Peers(t)
	dir := folder(t, project)
	name := docker.Up(t, agentsafe, "-v", dir+":/job", "-w", "/job", "-e", "AGENTSAFE_WORKSPACE=overlay", "-e", "AGENTSAFE_TRANSACTION=auto",
		image, "sleep", "1000")
	id := docker.Must(t, "inspect", "--format", "{{.Id}}", name)
	work(t, dir, session{
		id[:12],
		func(script string) string { return docker.Must(t, "exec", name, "sh", "-c", script) },
		func() { docker.Must(t, "rm", "--force", name) },
	})
}

func TestContainerd(t *testing.T) {
	_, agentsafe := harness.Peers(t)
	shim := filepath.Join(filepath.Dir(agentsafe.Path), "containerd-shim-agentsafe-v2")
	for _, c := range []struct{ name, runtime string }{{"our command line", ""}, {"our shim", shim}} {
		t.Run(c.name, func(t *testing.T) {
			dir, id := folder(t, project), box.ID()
			flags := []string{
				"--detach", "--cwd", "/job", "--mount", "type=bind,src=" + dir + ",dst=/job,options=rbind:rw",
				"--env", "AGENTSAFE_WORKSPACE=overlay", "--env", "AGENTSAFE_TRANSACTION=auto",
			}
			args := containerd.RunArgs(agentsafe, flags, harness.BusyboxName, id, "sleep", "1000")
			if c.runtime != "" {
				args = containerd.Args(append(append([]string{"run", "--runtime", c.runtime}, flags...), harness.BusyboxName, id, "sleep", "1000")...)
			}
			box.MustRun(t, args...)
			remove := func() {
				containerd.Do(t, "tasks", "kill", "--signal", "SIGKILL", id)
				for range 100 {
					if containerd.Do(t, "containers", "rm", id).Exit == 0 {
						return
					}
					containerd.Do(t, "tasks", "rm", "--force", id)
					time.Sleep(50 * time.Millisecond)
				}
			}
			t.Cleanup(remove)
			n := 0
			work(t, dir, session{
				id,
				func(script string) string {
					n++
					return containerd.Must(t, "tasks", "exec", "--exec-id", fmt.Sprintf("e%d", n), "--cwd", "/job", id, "sh", "-c", script)
				},
				remove,
			})
		})
	}
}

func TestAgentsafectlRun(t *testing.T) {
	dir := folder(t, project)
	if err := os.Chown(dir, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	before := listing(t, dir)
	profile := filepath.Join(box.TempDir(t), "p.yaml")
	text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: overlaid}\nextends: agent\nfilesystem: {workspace: {mode: overlay}}\n"
	if err := os.WriteFile(profile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r := ctl(t, "run", "--quiet", "--profile", profile, "--id", "ctl-run", "--workspace", dir, "--", "sh", "-c", "echo made >by-task; cat by-task")
	if r.Exit != 0 || r.Stdout != "made\n" {
		t.Fatal(r)
	}
	if now := listing(t, dir); now != before {
		t.Errorf("the host's folder has changed:\n%s", now)
	}
	if got := mustCtl(t, "diff", "--name-only", "ctl-run"); !strings.HasSuffix(got, "/by-task\n") {
		t.Errorf("diff: %q", got)
	}
	mustCtl(t, "promote", "ctl-run", "by-task")
	if now := listing(t, dir); !strings.Contains(now, `by-task -rw-r--r-- "made\n"`) {
		t.Errorf("promoted:\n%s", now)
	}
	mustCtl(t, "layers", "rm", "ctl-run")
}
