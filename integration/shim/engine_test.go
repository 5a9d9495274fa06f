package shim

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// runtimeName is what the daemons know the shim by.
const runtimeName = "io.containerd.agentsafe.v2"

// containerd is a running daemon of one version.
type containerd struct {
	name, program, client, config, dir string
	path                               []string // directories with shims, before the others
	cmd                                *exec.Cmd
	log                                string
}

// startContainerds starts both versions with the image; they end with the test.
func startContainerds(t testing.TB) []*containerd {
	t.Helper()
	current, err := harness.CurrentContainerd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ours := filepath.Dir(shimPath())
	links := box.TempDir(t)
	for _, profile := range []string{"none", "unheard-of"} {
		if err := os.Symlink(shimPath(), filepath.Join(links, "containerd-shim-agentsafe-"+profile+"-v2")); err != nil {
			t.Fatal(err)
		}
	}
	list := []*containerd{
		{name: "debian", program: "/usr/bin/containerd", client: "/usr/bin/ctr", path: []string{ours, links}},
		{name: "current", program: filepath.Join(current, "containerd"), client: filepath.Join(current, "ctr"), path: []string{ours, links, current}},
	}
	image, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		c.configure(t)
		c.start(t)
		t.Cleanup(func() { c.stop(t) })
		c.must(t, "images", "import", image.Archive)
	}
	return list
}

func (c *containerd) socket() string { return "/run/" + box.Tag + "-" + c.name + ".sock" }

func (c *containerd) configure(t testing.TB) {
	t.Helper()
	c.dir = box.TempDir(t)
	c.log = filepath.Join(box.Dir, c.name+"-containerd.log")
	c.config = filepath.Join(c.dir, "config.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"+
		"[grpc]\n  address = %q\n[ttrpc]\n  address = %q\n", filepath.Join(c.dir, "root"), "/run/"+box.Tag+"-"+c.name, c.socket(), c.socket()+".ttrpc")
	if err := os.WriteFile(c.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (c *containerd) start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(c.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c.cmd = exec.Command(c.program, "--config", c.config)
	c.cmd.Env = append(os.Environ(), "PATH="+strings.Join(append(c.path, os.Getenv("PATH")), ":"))
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(harness.Stretch(30 * time.Second)); exec.Command(c.client, "--address", c.socket(), "version").Run() != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(c.log)
			t.Fatalf("%s is not ready:\n%s", c.program, text)
		}
	}
}

// crash ends the daemon as the kernel would.
func (c *containerd) crash(t testing.TB) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.cmd.Wait() //nolint:errcheck // it was killed
}

func (c *containerd) stop(t testing.TB) {
	t.Helper()
	c.cmd.Process.Signal(unix.SIGTERM) //nolint:errcheck // it may have ended
	c.cmd.Wait()                       //nolint:errcheck // likewise
	for _, path := range []string{c.socket(), c.socket() + ".ttrpc", "/run/" + box.Tag + "-" + c.name} {
		if err := os.RemoveAll(path); err != nil {
			t.Error(err)
		}
	}
}

func (c *containerd) args(args ...string) []string {
	return append([]string{c.client, "--address", c.socket(), "--namespace", box.Tag}, args...)
}

func (c *containerd) do(t testing.TB, args ...string) harness.Result {
	t.Helper()
	return box.Run(t, harness.Cmd{Args: c.args(args...), Timeout: time.Minute})
}

func (c *containerd) must(t testing.TB, args ...string) string {
	t.Helper()
	return box.MustRun(t, c.args(args...)...)
}

// run is a command line that runs a container.
func (c *containerd) run(runtime, id string, flags []string, command ...string) []string {
	args := append([]string{"run", "--runtime", runtime}, flags...)
	return append(append(args, harness.BusyboxName, id), command...)
}

// up starts a container that the end of the test removes.
func (c *containerd) up(t testing.TB, flags []string, command ...string) string {
	t.Helper()
	id := box.ID()
	t.Cleanup(func() {
		c.do(t, "tasks", "delete", "--force", id)
		c.do(t, "containers", "delete", id)
	})
	c.must(t, c.run(runtimeName, id, append([]string{"--detach"}, flags...), command...)...)
	return id
}

func (c *containerd) status(t testing.TB, id string) string {
	t.Helper()
	for line := range strings.Lines(c.must(t, "tasks", "list")) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == id {
			return f[2]
		}
	}
	return "none"
}

func (c *containerd) waitStatus(t testing.TB, id, want string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		got := c.status(t, id)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is %s, want %s", id, got, want)
		}
	}
}

// shimOf finds the process that serves a container.
func shimOf(t testing.TB, id string) int {
	t.Helper()
	pid := findShim(id)
	if pid == 0 {
		t.Fatalf("no shim of %s", id)
	}
	return pid
}

// findShim is the pid of the shim that was started for a container, 0 if there is none.
func findShim(id string) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(line, []byte("-shim-")) && bytes.Contains(line, []byte("\x00-id\x00"+id+"\x00")) {
			return pid
		}
	}
	return 0
}

func TestEngines(t *testing.T) {
	for _, c := range startContainerds(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Run("run", c.testRun)
			t.Run("life", c.testLife)
			t.Run("hardening", c.testHardening)
			t.Run("handlers", c.testHandlers)
			t.Run("docs", c.testDocs)
			t.Run("killed shim", c.testKilledShim)
			t.Run("killed daemon", c.testKilledDaemon)
			if t.Failed() {
				text, _ := os.ReadFile(c.log)
				t.Logf("log of %s:\n%s", c.name, text[max(0, len(text)-6000):])
			}
		})
	}
}

func (c *containerd) testRun(t *testing.T) {
	for _, tc := range []struct {
		name    string
		flags   []string
		command []string
		stdin   string
		exit    int
		prints  string
	}{
		{name: "output and exit", command: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, exit: 3, prints: "out\n"},
		{name: "input", command: []string{"sh", "-c", "read a; echo $a"}, stdin: "through\n", prints: "through\n"},
		{name: "much output", command: []string{"sh", "-c", "seq 200000 | tail -n 1; exit 5"}, exit: 5, prints: "200000\n"},
		{name: "read only", flags: []string{"--read-only"}, command: []string{"sh", "-c", "touch /x 2>/dev/null; echo $?"}, prints: "1\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := c.args(c.run(runtimeName, box.ID(), append([]string{"--rm"}, tc.flags...), tc.command...)...)
			r := box.Run(t, harness.Cmd{Args: args, Stdin: tc.stdin})
			if r.Exit != tc.exit || r.Stdout != tc.prints {
				t.Errorf("want exit %d and %q:\n%v", tc.exit, tc.prints, r)
			}
		})
	}
	r := c.do(t, c.run(runtimeName, box.ID(), []string{"--rm"}, "no-such-command")...)
	if r.Exit == 0 || !strings.Contains(r.Stderr, "executable file not found in $PATH") {
		t.Errorf("missing program:\n%v", r)
	}
	tty := box.Run(t, harness.Cmd{Args: c.args(c.run(runtimeName, box.ID(), []string{"--rm", "--tty"}, "sh", "-c", "tty; exit 4")...), TTY: true})
	if tty.Exit != 4 || !strings.Contains(tty.Stdout, "/dev/pts/0") {
		t.Errorf("terminal:\n%v", tty)
	}
}

func (c *containerd) testLife(t *testing.T) {
	id := c.up(t, nil, "sleep", "1000")
	if got := c.status(t, id); got != "RUNNING" {
		t.Errorf("got %s", got)
	}
	r := c.do(t, "tasks", "exec", "--exec-id", "e1", id, "sh", "-c", "echo in; exit 6")
	if r.Exit != 6 || r.Stdout != "in\n" {
		t.Errorf("exec:\n%v", r)
	}
	c.must(t, "tasks", "pause", id)
	if got := c.status(t, id); got != "PAUSED" {
		t.Errorf("got %s", got)
	}
	c.must(t, "tasks", "resume", id)
	if out := c.must(t, "tasks", "metrics", id); !strings.Contains(out, "memory") {
		t.Errorf("metrics: %s", out)
	}
	c.must(t, "tasks", "kill", "--signal", "SIGKILL", id)
	c.waitStatus(t, id, "STOPPED")
	if r := c.do(t, "tasks", "delete", id); !strings.Contains(r.Stderr, "137") {
		t.Errorf("delete:\n%v", r)
	}
}

// testHardening: what the command line promises holds here.
func (c *containerd) testHardening(t *testing.T) {
	script := "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t '; mount -t tmpfs x /mnt 2>/dev/null; echo mount $?; unshare -r true 2>/dev/null; echo unshare $?"
	want := "NoNewPrivs:1\nSeccomp:2\nmount 1\nunshare 1\n"
	if r := c.do(t, c.run(runtimeName, box.ID(), []string{"--rm"}, "sh", "-c", script)...); r.Stdout != want {
		t.Errorf("first process: want %q\n%v", want, r)
	}
	id := c.up(t, nil, "sleep", "1000")
	if r := c.do(t, "tasks", "exec", "--exec-id", "e", id, "sh", "-c", script); r.Stdout != want {
		t.Errorf("exec: want %q\n%v", want, r)
	}
	r := c.do(t, c.run(runtimeName, box.ID(), []string{"--rm", "--privileged"}, "true")...)
	if r.Exit == 0 || !strings.Contains(r.Stderr, "profile") {
		t.Errorf("--privileged under the default profile:\n%v", r)
	}
}

// testHandlers: a link to the program is a runtime with the profile of its name, and options choose one as well.
func (c *containerd) testHandlers(t *testing.T) {
	status := []string{"grep", "Seccomp:", "/proc/self/status"}
	for name, want := range map[string]string{runtimeName: "2", "io.containerd.agentsafe-none.v2": "0"} {
		if r := c.do(t, c.run(name, box.ID(), []string{"--rm"}, status...)...); r.Exit != 0 || strings.TrimSpace(r.Stdout) != "Seccomp:\t"+want {
			t.Errorf("%s: want %s\n%v", name, want, r)
		}
	}
	r := c.do(t, c.run("io.containerd.agentsafe-unheard-of.v2", box.ID(), []string{"--rm"}, status...)...)
	if r.Exit == 0 || !strings.Contains(r.Stderr, "unheard-of") {
		t.Errorf("a profile that there is not:\n%v", r)
	}
	options := filepath.Join(c.dir, "none.toml")
	if err := os.WriteFile(options, []byte("profile = 'none' # of this handler\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = c.do(t, c.run(runtimeName, box.ID(), []string{"--rm", "--runtime-config-path", options}, status...)...)
	if r.Exit != 0 || strings.TrimSpace(r.Stdout) != "Seccomp:\t0" {
		t.Errorf("profile by options:\n%v", r)
	}
}

// testDocs runs the commands of docs/CONTAINERD.md.
func (c *containerd) testDocs(t *testing.T) {
	commands, err := harness.DocCommands("CONTAINERD.md", "ctr")
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range commands {
		line := strings.NewReplacer("IMAGE", harness.BusyboxName, "ID", box.ID(), "CMD", "echo done").Replace(strings.Join(words[1:], " "))
		if got := c.must(t, strings.Fields(line)...); got != "done" {
			t.Errorf("ctr %s prints %q", line, got)
		}
	}
}

// testKilledShim: containerd finds out, cleans up, and the container is gone with everything it held.
func (c *containerd) testKilledShim(t *testing.T) {
	before, err := box.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	id := box.ID()
	c.must(t, c.run(runtimeName, id, []string{"--detach"}, "sleep", "1000")...)
	if err := unix.Kill(shimOf(t, id), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.waitStatus(t, id, "none")
	c.must(t, "containers", "delete", id)
	// The fifos are those of the client, which left before the end.
	left := slices.DeleteFunc(box.Leftovers(before), func(l string) bool { return strings.HasPrefix(l, "file /run/containerd/fifo/") })
	if len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	if err := os.RemoveAll("/run/containerd/fifo"); err != nil {
		t.Error(err)
	}
}

// testKilledDaemon: containers go on, so does their output, and the exit is reported to the next daemon.
func (c *containerd) testKilledDaemon(t *testing.T) {
	log := filepath.Join(c.dir, "output.log")
	id := c.up(t, []string{"--log-uri", "file://" + log}, "sh", "-c", "echo one; sleep 2; echo two; sleep 1; exit 7")
	c.crash(t)
	c.start(t)
	if got := c.status(t, id); got != "RUNNING" {
		t.Errorf("after the crash: %s", got)
	}
	c.waitStatus(t, id, "STOPPED")
	if data, err := os.ReadFile(log); err != nil || string(data) != "one\ntwo\n" {
		t.Errorf("output: %q, %v", data, err)
	}
	if r := c.do(t, "tasks", "delete", id); !strings.Contains(r.Stderr, "exit code 7") {
		t.Errorf("delete:\n%v", r)
	}
}
