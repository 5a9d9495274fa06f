package moby

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func TestRun(t *testing.T) {
	before, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, runtime := range []string{byName, byPath, none, "io.containerd.agentsafe.v2"} {
		t.Run(runtime, func(t *testing.T) {
			r := engine.do(t, "run", "--rm", "--runtime", runtime, image, "sh", "-c", "echo out; echo err >&2; exit 3")
			if r.Exit != 3 || r.Stdout != "out\n" || r.Stderr != "err\n" {
				t.Errorf("run:\n%v", r)
			}
			name := engine.up(t, runtime, image, "sh", "-c", "echo up; trap 'exit 5' TERM; while :; do sleep 0.1; done")
			if !served(t, engine.must(t, "inspect", "--format", "{{.Id}}", name)) {
				t.Error("the container's shim is not ours")
			}
			r = engine.do(t, "exec", name, "sh", "-c", "echo in; exit 6")
			if r.Exit != 6 || r.Stdout != "in\n" {
				t.Errorf("exec:\n%v", r)
			}
			tty := box.Run(t, harness.Cmd{Args: []string{client, "-H", "unix://" + socket, "exec", "--interactive", "--tty", name, "sh", "-c", "read a; echo got $a; tty"}, TTY: true, Stdin: "word\n"})
			if tty.Exit != 0 || !strings.Contains(tty.Stdout, "got word") || !strings.Contains(tty.Stdout, "/dev/pts/") {
				t.Errorf("exec with a terminal:\n%v", tty)
			}
			if got := engine.must(t, "stats", "--no-stream", "--format", "{{.MemUsage}} {{.PIDs}}", name); strings.HasPrefix(got, "0B") || strings.HasSuffix(got, " 0") {
				t.Errorf("stats: %s", got)
			}
			if got := engine.must(t, "top", name); !strings.Contains(got, "sleep") {
				t.Errorf("top: %s", got)
			}
			engine.must(t, "pause", name)
			engine.must(t, "unpause", name)
			engine.must(t, "stop", name)
			if got := engine.must(t, "inspect", "--format", "{{.State.ExitCode}}", name); got != "5" {
				t.Errorf("stopped with %s, want 5", got)
			}
			if got := engine.must(t, "logs", name); got != "up" {
				t.Errorf("logs: %q", got)
			}
			engine.must(t, "start", name)
			engine.must(t, "rm", "--force", name)
		})
	}
	if left := box.Leftovers(before); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// served tells whether a process of our shim serves the container.
func served(t *testing.T, id string) bool {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		data, err := os.ReadFile(l)
		if err == nil && bytes.HasPrefix(data, []byte(shimPath()+"\x00")) && bytes.Contains(data, []byte("\x00"+id+"\x00")) {
			return true
		}
	}
	return false
}

func TestHardening(t *testing.T) {
	for _, runtime := range []string{byName, byPath} {
		t.Run(runtime, func(t *testing.T) {
			name := engine.up(t, runtime, image, "sleep", "1000")
			harness.WantHardened(t, harness.ParseReport(t, engine.do(t, "exec", name, "probe", "report")), false)
			harness.WantHardened(t, harness.ParseReport(t, engine.do(t, "exec", "--user", "app", name, "probe", "report")), true)
			harness.WantHardened(t, harness.ParseReport(t, engine.do(t, "run", "--rm", "--runtime", runtime, image, "probe", "report")), false)
		})
	}
	t.Run("profile by options", func(t *testing.T) {
		r := harness.ParseReport(t, engine.do(t, "run", "--rm", "--runtime", none, image, "probe", "report"))
		if r.Status["NoNewPrivs"] != "0" || r.Calls["ptrace attach to a child"] != "ok" {
			t.Errorf("the profile none: NoNewPrivs %s, ptrace %s", r.Status["NoNewPrivs"], r.Calls["ptrace attach to a child"])
		}
	})
	t.Run("refused", func(t *testing.T) {
		for _, flags := range [][]string{{"--cap-add", "SYS_ADMIN"}, {"--network", "host"}, {"--pid", "host"}, {"-v", "/:/host"}} {
			r := engine.do(t, append(append([]string{"run", "--rm", "--runtime", byName}, flags...), image, "true")...)
			if r.Exit == 0 || !strings.Contains(r.Stderr, "profile") {
				t.Errorf("want a refusal that names the profile:\n%v", r)
			}
			if r := engine.do(t, append(append([]string{"run", "--rm", "--runtime", none}, flags...), image, "true")...); r.Exit != 0 {
				t.Errorf("the profile none refuses it too:\n%v", r)
			}
		}
	})
}

// TestAnnotation: an annotation tightens, and one that is not understood is an error.
func TestAnnotation(t *testing.T) {
	id := create(t, map[string]string{"agentsafe.dev/drop-capabilities": "all"}, "grep", "CapEff", "/proc/self/status")
	engine.must(t, "start", id)
	engine.must(t, "wait", id)
	if got := engine.must(t, "logs", id); !strings.HasSuffix(got, "0000000000000000") {
		t.Errorf("without capabilities: %s", got)
	}
	id = create(t, map[string]string{"agentsafe.dev/drop-capabilitys": "all"}, "true")
	if r := engine.do(t, "start", id); r.Exit == 0 || !strings.Contains(r.Stderr, "drop-capabilitys") {
		t.Errorf("an annotation with a mistake:\n%v", r)
	}
}

// create makes a container with annotations through the engine's API, and removes it at the end of the test.
func create(t *testing.T, annotations map[string]string, command ...string) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{"Image": image, "Cmd": command, "HostConfig": map[string]any{"Runtime": byName, "Annotations": annotations}})
	if err != nil {
		t.Fatal(err)
	}
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}, Timeout: time.Minute}
	defer c.CloseIdleConnections()
	r, err := c.Post("http://docker/v1.50/containers/create", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out struct{ ID string }
	if err := json.Unmarshal(data, &out); err != nil || out.ID == "" {
		t.Fatalf("create: %s, %v", data, err)
	}
	t.Cleanup(func() { engine.do(t, "rm", "--force", out.ID) })
	return out.ID
}

// TestDaemonAway: with live-restore containers outlive dockerd, and it learns how they ended.
func TestDaemonAway(t *testing.T) {
	lives := engine.up(t, byName, image, "sleep", "1000")
	ends := engine.up(t, byName, image, "sh", "-c", "sleep 1; exit 7")
	if err := unix.Kill(engine.dockerd.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	os.Remove("/run/docker-test.pid")
	if err := engine.startDaemon(box); err != nil {
		t.Fatal(err)
	}
	state := func(name string) string {
		return engine.must(t, "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", name)
	}
	if got := state(lives); got != "running 0" {
		t.Errorf("the one that lives: %s", got)
	}
	if got := state(ends); got != "exited 7" {
		t.Errorf("the one that has ended: %s", got)
	}
	if r := engine.do(t, "exec", lives, "echo", "in"); r.Stdout != "in\n" {
		t.Errorf("exec:\n%v", r)
	}
}

// TestKilledShim: the engine finds out, and nothing stays behind.
func TestKilledShim(t *testing.T) {
	before, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	name := engine.up(t, byName, image, "sleep", "1000")
	id := engine.must(t, "inspect", "--format", "{{.Id}}", name)
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		var pid int
		data, err := os.ReadFile(l)
		if err != nil || !bytes.HasPrefix(data, []byte(shimPath()+"\x00")) || !bytes.Contains(data, []byte("\x00"+id+"\x00")) {
			continue
		}
		if _, err := fmt.Sscanf(l, "/proc/%d/", &pid); err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if got := engine.must(t, "wait", name); got != "137" {
		t.Errorf("exit code %s, want 137", got)
	}
	engine.must(t, "rm", "--force", name)
	if left := box.Leftovers(before); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// TestDocs runs the commands of docs/CONTAINERD.md.
func TestDocs(t *testing.T) {
	commands, err := harness.DocCommands("CONTAINERD.md", "docker")
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range commands {
		line := strings.NewReplacer("IMAGE", image, "CMD", "echo done").Replace(strings.Join(words[1:], " "))
		if got := engine.must(t, strings.Fields(line)...); got != "done" {
			t.Errorf("docker %s prints %q", line, got)
		}
	}
}
