package layers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
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

// TestDockerRestart starts a container again, after a stop and after its end by a kill: its workspaces are as the task left
// them, and the log goes on.
func TestDockerRestart(t *testing.T) {
	_, agentsafe := harness.Peers(t)
	dir := folder(t, project)
	before := listing(t, dir)
	name := docker.Up(t, agentsafe, "-v", dir+":/job", "-w", "/job", "-e", "AGENTSAFE_WORKSPACE=overlay", "-e", "AGENTSAFE_TRANSACTION=auto",
		image, "sh", "-c", "echo base >>base; exec sleep 1000")
	id := docker.Must(t, "inspect", "--format", "{{.Id}}", name)
	docker.Must(t, "exec", name, "sh", "-c", "echo two >>f; rm -r keep")
	docker.Must(t, "restart", "--time", "0", name)
	if got := docker.Must(t, "exec", name, "sh", "-c", "cat f base; ls"); got != "one\ntwo\nbase\nbase\nbase\nf" {
		t.Errorf("after a restart: %q", got)
	}
	docker.Must(t, "kill", name)
	docker.Must(t, "start", name)
	docker.Must(t, "exec", name, "sh", "-c", "echo new >g")
	mustCtl(t, "undo", id+"@1") // of the first run
	h := history(t, id)
	if len(h) != 3 || h[0].Status != "undone" || h[2].N != 3 {
		t.Errorf("log: %+v", h)
	}
	docker.Must(t, "stop", "--time", "0", name)
	if now := listing(t, dir); now != before {
		t.Errorf("the host's folder has changed:\n%s", now)
	}
	docker.Must(t, "rm", "--force", name)
	if got := mustCtl(t, "layers"); strings.Count(got, id) != 1 {
		t.Errorf("layers: %s", got)
	}
	mustCtl(t, "layers", "rm", id)
}

// TestMemory has the layers of an engine's container in memory: the same work, what it writes is bounded and is none
// of the disk's, and nothing is left of it when the layers are removed.
func TestMemory(t *testing.T) {
	_, agentsafe := harness.Peers(t)
	keepConfig(t)
	installMemoryProfile(t, "16MiB")
	box.MustRun(t, "sh", "-c", "mkdir -p /etc/agentsafe && echo 'selectable = [\""+memoryProfile+"\"]' >/etc/agentsafe/config.toml && "+control(t)+" config apply")
	dir, id := folder(t, project), box.ID()
	shim := filepath.Join(filepath.Dir(agentsafe.Path), "containerd-shim-agentsafe-v2")
	box.MustRun(t, containerd.Args("run", "--runtime", shim, "--detach", "--cwd", "/job", "--mount", "type=bind,src="+dir+",dst=/job,options=rbind:rw",
		"--annotation", "agentsafe.dev/profile="+memoryProfile, "--env", "AGENTSAFE_TRANSACTION=auto", harness.BusyboxName, id, "sleep", "1000")...)
	remove := removeTask(t, id)
	t.Cleanup(remove)
	n := 0
	run := func(script string) harness.Result {
		n++
		return containerd.Do(t, "tasks", "exec", "--exec-id", fmt.Sprintf("m%d", n), "--cwd", "/job", id, "sh", "-c", script)
	}
	if got := mustCtl(t, "layers"); !strings.Contains(got, dir+" on /job, in memory") {
		t.Errorf("layers: %s", got)
	}
	work(t, dir, session{id, func(script string) string {
		r := run(script)
		if r.Exit != 0 {
			t.Fatalf("%s: %v", script, r)
		}
		return strings.TrimSpace(r.Stdout)
	}, func() {
		if r := run("dd if=/dev/zero of=big bs=1M count=20; rm big; df -k . | tail -1"); !strings.Contains(r.Stderr, "No space left") {
			t.Errorf("a full layer: %v", r)
		}
		if mounts := box.MustRun(t, "cat", "/proc/self/mounts"); !strings.Contains(mounts, "agentsafe "+store+"/"+id+"/w0/memory tmpfs ") {
			t.Errorf("no tmpfs of the layers: %s", mounts)
		}
		remove()
	}})
	if mounts := box.MustRun(t, "cat", "/proc/self/mounts"); strings.Contains(mounts, id) {
		t.Errorf("left: %s", mounts)
	}
}

// TestDockerManyExecs has tool calls come one right after the other, and others beside them, as agents do: none of them
// is taken for a conflict with one that has ended or that works on other files, and each sees what came before.
func TestDockerManyExecs(t *testing.T) {
	_, agentsafe := harness.Peers(t)
	dir := folder(t, project)
	name := docker.Up(t, agentsafe, "-v", dir+":/job", "-w", "/job", "-e", "AGENTSAFE_WORKSPACE=overlay", "-e", "AGENTSAFE_TRANSACTION=auto", image, "sleep", "1000")
	id := docker.Must(t, "inspect", "--format", "{{.Id}}", name)
	const lanes, calls = 5, 6
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Go(func() {
			for call := range calls {
				script := fmt.Sprintf("mkdir -p made/%d && test $(cat made/%d/log 2>/dev/null | wc -l) = %d && echo %d | tee -a made/%d/log >made/%d/f%d", lane, lane, call, call, lane, lane, call)
				if r := docker.Do(t, "exec", name, "sh", "-ec", script); r.Exit != 0 {
					t.Errorf("lane %d, call %d: %v", lane, call, r)
				}
			}
		})
	}
	wg.Wait()
	h := history(t, id)
	for _, tx := range h {
		if tx.Status != "committed" || tx.Exit == nil || *tx.Exit != 0 {
			t.Errorf("%+v", tx)
		}
	}
	if got := docker.Must(t, "exec", name, "sh", "-c", "cat made/*/log | wc -l; ls made/*/f* | wc -l"); got != "30\n30" || len(h) != lanes*calls {
		t.Errorf("%d transactions, lines and files: %q", len(h), got)
	}
	docker.Must(t, "rm", "--force", name)
	mustCtl(t, "layers", "rm", id)
}

// removeTask returns what removes a container of containerd's.
func removeTask(t *testing.T, id string) func() {
	return func() {
		containerd.Do(t, "tasks", "kill", "--signal", "SIGKILL", id)
		for range 100 {
			if containerd.Do(t, "containers", "rm", id).Exit == 0 {
				return
			}
			containerd.Do(t, "tasks", "rm", "--force", id)
			time.Sleep(50 * time.Millisecond)
		}
	}
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
			remove := removeTask(t, id)
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

// TestDockerRootfs changes the root file system of a container, which stays the engine's: agentsafectl and docker see the
// same, and copying and committing work.
func TestDockerRootfs(t *testing.T) {
	_, agentsafe := harness.Peers(t)
	dir := folder(t, project)
	name := docker.Up(t, agentsafe, "-v", dir+":/job", "-e", "AGENTSAFE_WORKSPACE=overlay", "-e", "AGENTSAFE_TRANSACTION=auto", image, "sleep", "1000")
	id := docker.Must(t, "inspect", "--format", "{{.Id}}", name)
	docker.Must(t, "exec", name, "sh", "-c", "echo made >/etc/made; rm /etc/group; mkdir /opt2; echo in >/job/in")
	docker.Must(t, "cp", name+":/etc/made", filepath.Join(dir, "copied"))
	if data, err := os.ReadFile(filepath.Join(dir, "copied")); err != nil || string(data) != "made\n" {
		t.Errorf("docker cp: %q %v", data, err)
	}
	docker.Must(t, "cp", filepath.Join(dir, "copied"), name+":/etc/put")
	// The box's engine keeps its states in a place of its own.
	roots, err := filepath.Glob("/run/docker-test/runtime-*/moby")
	if err != nil || len(roots) == 0 {
		t.Fatalf("state directories of the box's docker: %v %v", roots, err)
	}
	diff := func(flags ...string) string {
		for _, root := range roots {
			if r := ctl(t, append([]string{"--root", root, "diff", "--rootfs", id[:12]}, flags...)...); r.Exit == 0 {
				return r.Stdout
			}
		}
		t.Fatalf("no state directory of %q knows the container", roots)
		return ""
	}
	ours, theirs := diff("--name-only"), docker.Must(t, "diff", name)
	for _, want := range []string{"A /etc/made", "D /etc/group", "A /opt2", "A /etc/put"} {
		if !strings.Contains(ours, want) || !strings.Contains(theirs, want) {
			t.Errorf("%s is missing from\n%s\nor from docker's\n%s", want, ours, theirs)
		}
	}
	if strings.Contains(ours, "/job/in") {
		t.Errorf("the workspace is in the root's changes:\n%s", ours)
	}
	if got := diff(); !strings.Contains(got, "+made") {
		t.Errorf("diff: %s", got)
	}
	docker.Must(t, "commit", name, "committed:test")
	if got := docker.Must(t, "run", "--rm", "--runtime", agentsafe.Name, "committed:test", "cat", "/etc/made", "/etc/put"); got != "made\nmade" {
		t.Errorf("docker commit: %q", got)
	}
	docker.Must(t, "rm", "--force", name)
	docker.Must(t, "rmi", "committed:test")
	mustCtl(t, "layers", "rm", id)
}

// TestDockerHealthCheck has the engine check a container's health by a command that writes: it works on the base, and is
// not in the log, while an exec of the same container is a transaction.
func TestDockerHealthCheck(t *testing.T) {
	_, agentsafe := harness.Peers(t)
	dir := folder(t, project)
	name := docker.Up(t, agentsafe, "-v", dir+":/job", "-w", "/job", "-e", "AGENTSAFE_WORKSPACE=overlay", "-e", "AGENTSAFE_TRANSACTION=auto",
		"--health-cmd", "echo checked >>health", "--health-interval", "200ms", image, "sleep", "1000")
	id := docker.Must(t, "inspect", "--format", "{{.Id}}", name)
	healthy := func() bool {
		return docker.Must(t, "inspect", "--format", "{{.State.Health.Status}}", name) == "healthy"
	}
	deadline := time.Now().Add(time.Minute)
	for !healthy() {
		if time.Now().After(deadline) {
			t.Fatal("the container does not become healthy")
		}
		time.Sleep(50 * time.Millisecond)
	}
	docker.Must(t, "exec", name, "sh", "-c", "echo two >>f")
	h := history(t, id)
	if len(h) != 1 || h[0].Status != "committed" || h[0].Changes != 1 {
		t.Errorf("log: %+v", h)
	}
	if got := mustCtl(t, "diff", "--name-only", id); !strings.Contains(got, "/health\n") {
		t.Errorf("what the health check wrote is not in the workspace: %q", got)
	}
	docker.Must(t, "rm", "--force", name)
	mustCtl(t, "layers", "rm", id)
}
