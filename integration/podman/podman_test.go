package podman

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func sh(script string) []string { return []string{"sh", "-c", script} }

func exact(code int, prints string) harness.Comparison {
	return harness.All(harness.Same, harness.Exits(code), harness.Prints(prints))
}

// flags for every container: Podman's own defaults ask for more than a root without CAP_SYS_RESOURCE may give.
func flags(more ...string) []string {
	return append([]string{"--cgroup-parent", box.CgroupParent(), "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"}, more...)
}

func TestRun(t *testing.T) {
	for _, tc := range []struct {
		name    string
		flags   []string
		command []string
		stdin   string
		tty     bool
		compare harness.Comparison
	}{
		{name: "output and exit code", command: sh("echo out; echo err >&2; exit 3"), compare: exact(3, "^out\n$")},
		{name: "stdin", flags: []string{"-i"}, command: sh("cat; exit 2"), stdin: "one\n", compare: exact(2, "^one\n$")},
		{name: "terminal", flags: []string{"-i", "-t"}, command: sh("tty; read a; echo got $a; exit 4"), stdin: "word\n", tty: true, compare: harness.All(harness.SameExit, harness.Exits(4), harness.Prints("(?s)/dev/pts/0.*got word"))},
		{
			name: "many settings at once",
			flags: []string{
				"-e", "A=b c", "-w", "/var/tmp", "--user", "app", "--hostname", "here", "--tmpfs", "/scratch:size=1m", "--shm-size", "8m",
				"--sysctl", "net.ipv4.ip_unprivileged_port_start=77", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
			},
			command: sh(`echo "$A|$HOME"; pwd; id; hostname; ulimit -Sn; df -k /scratch /dev/shm | awk '{print $2}'
				cat /proc/sys/net/ipv4/ip_unprivileged_port_start; grep -E "Cap|NoNewPrivs" /proc/self/status`),
			compare: exact(0, `(?s)^b c\|/home/app\n/var/tmp\nuid=1000.*here\n1024\n.*8192\n77\n.*NoNewPrivs:\t1`),
		},
		{name: "resources", flags: []string{"--memory", "64m", "--cpus", "0.5", "--pids-limit", "20"}, command: sh(
			"cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us pids/pids.max 2>/dev/null || cat memory.max cpu.max pids.max"), compare: exact(0, "67108864\n50000.*\n20\n")},
		{name: "no network", flags: []string{"--network", "none"}, command: sh("ls /sys/class/net; probe dial tcp 192.0.2.1:80 2>/dev/null; exit 0"), compare: exact(0, "^lo\nENETUNREACH\n$")},
		{name: "bridge", flags: []string{"--network", "bridge"}, command: sh("ls /sys/class/net; ip route | grep -c default"), compare: exact(0, "^eth0\nlo\n1\n$")},
		{name: "read only", flags: []string{"--read-only"}, command: sh("touch /x; echo $?; touch /tmp/x && echo written"), compare: exact(0, "^1\nwritten\n$")},
		{name: "an init process", flags: []string{"--pid", "private"}, command: sh("echo $$"), compare: exact(0, "^1\n$")},
		{name: "no such command", command: []string{"no-such-command"}, compare: harness.All(harness.SameExit, harness.Exits(127), harness.ErrorHas("executable file .*not found in \\$PATH"))},
		{name: "not executable", command: []string{"/etc/passwd"}, compare: harness.All(harness.SameExit, harness.Exits(126), harness.ErrorHas("(?i)permission denied"))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				args := append(append([]string{"run", "--rm"}, flags(tc.flags...)...), image)
				return box.Run(t, harness.Cmd{Args: engine.Args(p, append(args, tc.command...)...), Stdin: tc.stdin, TTY: tc.tty})
			}, tc.compare)
		})
	}
}

// up starts a container in the background, to be removed when the test ends, and returns its name.
func up(t *testing.T, p harness.Peer, command ...string) string {
	t.Helper()
	name := box.ID()
	t.Cleanup(func() { engine.Must(t, p, "rm", "--force", "--time", "0", name) })
	args := append([]string{"run", "--detach", "--name", name}, flags(image)...)
	engine.Must(t, p, append(args, command...)...)
	return name
}

func result(lines ...any) harness.Result {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintln(&b, l)
	}
	return harness.Result{Stdout: b.String()}
}

func waitLog(t *testing.T, p harness.Peer, name, text string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(engine.Must(t, p, "logs", name), text); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log never says %q", text)
		}
	}
}

func TestLife(t *testing.T) {
	const trap = `trap "echo term; exit 9" TERM; trap "echo hup" HUP; echo up; while :; do sleep 0.05; done`
	const endState = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, p harness.Peer) harness.Result
		want string
	}{
		{"exec", func(t *testing.T, p harness.Peer) harness.Result {
			name := up(t, p, "sleep", "1000")
			plain := engine.Do(t, p, "exec", "-e", "A=1", "-w", "/etc", "--user", "app", name, "sh", "-c", "echo $A; pwd; id -u; exit 5")
			stdin := box.Run(t, harness.Cmd{Args: engine.Args(p, "exec", "-i", name, "cat"), Stdin: "through"})
			tty := box.Run(t, harness.Cmd{Args: engine.Args(p, "exec", "-it", name, "tty"), TTY: true})
			missing := engine.Do(t, p, "exec", name, "no-such-command")
			return result(plain.Stdout, plain.Exit, stdin.Stdout, tty.Stdout, missing.Exit)
		}, "(?s)^1\n/etc\n1000\n\n5\nthrough\n/dev/pts/"},
		{"stop", func(t *testing.T, p harness.Peer) harness.Result {
			name := up(t, p, "sh", "-c", trap)
			waitLog(t, p, name, "up")
			engine.Must(t, p, "stop", name)
			return result(engine.Must(t, p, "inspect", "--format", endState, name), engine.Must(t, p, "logs", name))
		}, "exited 9"},
		{"kill", func(t *testing.T, p harness.Peer) harness.Result {
			name := up(t, p, "sh", "-c", trap)
			waitLog(t, p, name, "up")
			engine.Must(t, p, "kill", "--signal", "HUP", name)
			waitLog(t, p, name, "hup")
			engine.Must(t, p, "kill", name)
			return result(engine.Must(t, p, "wait", name), engine.Must(t, p, "inspect", "--format", endState, name))
		}, "exited 137"},
		{"pause", func(t *testing.T, p harness.Peer) harness.Result {
			name := up(t, p, "sleep", "1000")
			engine.Must(t, p, "pause", name)
			paused := engine.Must(t, p, "inspect", "--format", "{{.State.Status}}", name)
			engine.Must(t, p, "unpause", name)
			return result(paused, engine.Must(t, p, "exec", name, "echo", "thawed"))
		}, "paused\nthawed"},
		{"restart", func(t *testing.T, p harness.Peer) harness.Result {
			name := up(t, p, "sh", "-c", "echo start; exec sleep 1000")
			waitLog(t, p, name, "start")
			engine.Must(t, p, "restart", "--time", "0", name)
			waitLog(t, p, name, "start\nstart")
			return result(engine.Must(t, p, "inspect", "--format", "{{.State.Status}}", name))
		}, "running"},
		{"cp and top", func(t *testing.T, p harness.Peer) harness.Result {
			name := up(t, p, "sleep", "1000")
			file := filepath.Join(box.TempDir(t), "f")
			if err := os.WriteFile(file, []byte("copied"), 0o600); err != nil {
				t.Fatal(err)
			}
			engine.Must(t, p, "cp", file, name+":/root/f")
			return result(engine.Must(t, p, "exec", name, "cat", "/root/f"), engine.Must(t, p, "top", name, "args"))
		}, "(?s)copied.*sleep 1000"},
		{"volume", func(t *testing.T, p harness.Peer) harness.Result {
			dir := box.TempDir(t)
			args := append([]string{"run", "--rm"}, flags("-v", dir+":/v", image, "sh", "-c", "echo new >/v/out")...)
			engine.Must(t, p, args...)
			data, err := os.ReadFile(filepath.Join(dir, "out"))
			return result(string(data), err)
		}, "^new\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.SideBySide(t, tc.do, harness.Same, harness.Prints(tc.want))
		})
	}
}
