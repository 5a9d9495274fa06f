package profiles

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// program is one of ours, beside the runtime under test.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := harness.RuntimePath()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(filepath.Dir(path), name)
}

// administer writes the host's configuration and applies it until the test ends.
func administer(t *testing.T, text string) {
	t.Helper()
	if err := os.MkdirAll("/etc/agentsafe", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/agentsafe/config.toml", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	box.MustRun(t, program(t, "agentsafectl"), "config", "apply")
	t.Cleanup(func() {
		if err := os.RemoveAll("/etc/agentsafe"); err != nil {
			t.Error(err)
		}
	})
}

// waitRecording waits until a recording holds a word: it is written when the last process has ended, which an engine
// need not wait for.
func waitRecording(t *testing.T, name string, words ...string) {
	t.Helper()
	file := filepath.Join("/var/lib/agentsafe/recordings", name+".json")
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		data, err := os.ReadFile(file)
		missing := ""
		for _, w := range words {
			if !strings.Contains(string(data), w) {
				missing = w
			}
		}
		if err == nil && missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("recording %s has no %q (%v):\n%s", name, missing, err, data)
		}
	}
}

const recordingConfig = `
[handlers.learn]
profile = "agent"
record = "by-docker"
[record]
names = ["shop", "pods"]
`

// forbidden prints what the profile agent refuses, which must be the same whether somebody watches or not.
const forbidden = `unshare -m true 2>/dev/null && echo unshared; mount -t tmpfs x /mnt 2>/dev/null && echo mounted; ` +
	`mknod /tmp/kmem c 1 2 2>/dev/null && cat /tmp/kmem; grep -E '^(NoNewPrivs|CapEff|CapBnd):' /proc/self/status; `

// TestRecording records containers of Docker's (by handler), of containerd's (by annotation, under runc's shim and
// ours) and of Podman's (by annotation), makes a profile of what was seen, and runs the same under it.
func TestRecording(t *testing.T) {
	administer(t, recordingConfig)
	busybox, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("docker", func(t *testing.T) { recordDocker(t, busybox) })
	t.Run("containerd", func(t *testing.T) { recordContainerd(t, busybox) })
	t.Run("podman", func(t *testing.T) { recordPodman(t, busybox) })
}

func recordDocker(t *testing.T, busybox harness.Image) {
	const image = "busybox:test"
	ctl := program(t, "agentsafectl")
	docker, err := box.StartDocker()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := docker.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := docker.Import(busybox.Tar, image); err != nil {
		t.Fatal(err)
	}
	docker.Configure(t, map[string]any{"runtimes": docker.Runtimes(map[string][]string{"learn": {"--profile", "learn"}, "learned": {"--profile", "learned"}})})
	dir := box.TempDir(t)
	if err := os.WriteFile(filepath.Join(dir, "input"), []byte("x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(runtime, script string) harness.Result {
		return docker.Do(t, "run", "--rm", "--network", "none", "--runtime", runtime, "-v", dir+":/job", "-w", "/job", image, "sh", "-c", script)
	}
	watched, plain := run("learn", forbidden), run("agentsafe", forbidden)
	if watched.Stdout != plain.Stdout || !strings.Contains(watched.Stdout, "NoNewPrivs:\t1") {
		t.Errorf("watched, it has\n%v\nand without\n%v", watched, plain)
	}

	const job = `cat input; echo made > output; mkdir -p /tmp/d; kill -STOP $$ & sleep 0.2; kill -CONT $$; ls /etc/group`
	if r := run("learn", job); r.Exit != 0 || !strings.Contains(r.Stdout, "x\n") {
		t.Fatalf("the recorded job:\n%v", r)
	}
	name := docker.Up(t, harness.Peer{Name: "learn"}, "--network", "none", "-v", dir+":/job", "-w", "/job", image, "sleep", "1000")
	if r := docker.Do(t, "exec", name, "sh", "-c", "cat /etc/passwd; exit 7"); r.Exit != 7 || !strings.Contains(r.Stdout, "root:") {
		t.Errorf("exec in a recorded container:\n%v", r)
	}
	docker.Must(t, "pause", name)
	docker.Must(t, "unpause", name)
	docker.Must(t, "rm", "--force", name)
	waitRecording(t, "by-docker", `"/job/output"`, `"/job/input"`, `"/tmp/d"`, `"/etc/passwd"`, `"/bin/busybox"`, `"sleep 1000"`)

	killRecorder(t, docker)
	if r := box.Run(t, harness.Cmd{Args: []string{ctl, "profile", "recordings"}}); r.Exit != 0 || !strings.Contains(r.Stdout, "by-docker  ") {
		t.Errorf("recordings:\n%v", r)
	}
	file := filepath.Join(box.TempDir(t), "learned.yaml")
	box.MustRun(t, ctl, "profile", "generate", "--recording", "by-docker", "--name", "learned", "-o", file)
	box.MustRun(t, ctl, "profile", "install", file)
	if r := run("learned", job); r.Exit != 0 || !strings.Contains(r.Stdout, "x\n") {
		text, _ := os.ReadFile(file)
		t.Errorf("the same job under its profile:\n%v\n%s", r, text)
	}
	extras := try + `try ls /opt; try ls /var/spool; try touch /etc/new; cp /bin/busybox /tmp/sh; try /tmp/sh true`
	if r, want := run("learned", extras), "ls /opt: refused\nls /var/spool: refused\ntouch /etc/new: refused\n/tmp/sh true: refused\n"; r.Stdout != want {
		t.Errorf("what was not recorded:\n%v\nwant\n%s", r, want)
	}
}

// killRecorder kills the recorder of a container: what nobody keeps a record of any more must not go on as if it were
// recorded, nor without the calls that would stop for it.
func killRecorder(t *testing.T, docker *harness.Docker) {
	t.Helper()
	name := docker.Up(t, harness.Peer{Name: "learn"}, "--network", "none", "busybox:test", "sleep", "1000")
	status, err := os.ReadFile("/proc/" + docker.Must(t, "inspect", "--format", "{{.State.Pid}}", name) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "TracerPid:")
	line, _, _ := strings.Cut(rest, "\n")
	tracer, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || tracer == 0 {
		t.Fatalf("nobody traces the recorded container: %q, %v", line, err)
	}
	if err := unix.Kill(tracer, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(60 * time.Second); docker.Must(t, "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", name) != "exited 137"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the container is %s without its recorder", docker.Must(t, "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", name))
		}
	}
}

func recordContainerd(t *testing.T, busybox harness.Image) {
	containerd, err := box.StartContainerd()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := containerd.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := containerd.Import(busybox.Archive); err != nil {
		t.Fatal(err)
	}
	run := func(name, script string, runtime ...string) harness.Result {
		args := append([]string{"run", "--rm", "--annotation", "agentsafe.dev/record=" + name}, runtime...)
		return containerd.Do(t, append(args, harness.BusyboxName, box.ID(), "sh", "-c", script)...)
	}
	byRunc := []string{"--runtime", "io.containerd.runc.v2", "--runc-binary", program(t, "agentsafe"), "--runc-root", "/run/ctr-recorded"}
	ours := []string{"--runtime", program(t, "containerd-shim-agentsafe-v2")}
	for i, runtime := range [][]string{byRunc, ours} {
		word := []string{"first", "second"}[i]
		if r := run("shop", "echo "+word+" > /tmp/"+word+"; exit 4", runtime...); r.Exit != 4 {
			t.Errorf("%s: want 4:\n%v", word, r)
		}
	}
	waitRecording(t, "shop", `"/tmp/first"`, `"/tmp/second"`)
	wantRefusal(t, run("other", "true", byRunc...), "annotation agentsafe.dev/record=other", "names = [\"other\"]` below [record]")
	wantRefusal(t, run("../x", "true", ours...), "is not a name")
}

// recordPodman records two containers of Podman's by their annotation, one with an exec, and merges them.
func recordPodman(t *testing.T, busybox harness.Image) {
	podman := &harness.Podman{Box: box}
	if err := podman.Load(busybox.Archive); err != nil {
		t.Fatal(err)
	}
	_, peer := harness.Peers(t)
	// Podman's own defaults ask for more open files than a root without CAP_SYS_RESOURCE may give.
	flags := func(name string, more ...string) []string {
		return append([]string{
			"run", "--cgroup-parent", box.CgroupParent(), "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "none",
			"--annotation", "agentsafe.dev/record=" + name,
		}, more...)
	}
	run := func(name, script string) harness.Result {
		return podman.Do(t, peer, flags(name, "--rm", "busybox:test", "sh", "-c", script)...)
	}
	if r := run("pods", "echo x > /tmp/podman-first; exit 6"); r.Exit != 6 {
		t.Errorf("want 6:\n%v", r)
	}
	name := box.ID()
	t.Cleanup(func() { podman.Must(t, peer, "rm", "--force", "--time", "0", name) })
	podman.Must(t, peer, flags("pods", "--detach", "--name", name, "busybox:test", "sleep", "1000")...)
	if r := podman.Do(t, peer, "exec", name, "sh", "-c", "echo x > /tmp/podman-exec; exit 3"); r.Exit != 3 {
		t.Errorf("exec in a recorded container, want 3:\n%v", r)
	}
	podman.Must(t, peer, "kill", name)
	waitRecording(t, "pods", `"/tmp/podman-first"`, `"/tmp/podman-exec"`, `"sleep 1000"`)
	wantRefusal(t, run("other", "true"), "agentsafe.dev/record=other", "names = [\"other\"]` below [record]")

	file := filepath.Join(box.TempDir(t), "pods.yaml")
	box.MustRun(t, program(t, "agentsafectl"), "profile", "generate", "--recording", "pods", "--name", "pods", "-o", file)
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "- /tmp") {
		t.Errorf("the profile of both runs: %v\n%s", err, text)
	}
}
