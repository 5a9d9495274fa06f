package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func TestExec(t *testing.T) {
	type with struct {
		name    string
		flags   []string
		command []string
		stdin   string
		tty     bool
		compare harness.Comparison
	}
	containers := map[string]harness.Bundle{}
	drivers := map[string]*harness.Bare{}
	runc, agentsafe := harness.Peers(t)
	for _, p := range []harness.Peer{runc, agentsafe} {
		drivers[p.Name] = box.Bare(t, p)
		containers[p.Name] = drivers[p.Name].Up(t, func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "OWN=container's") })
	}
	process := filepath.Join(box.TempDir(t), "process.json")
	data, err := json.Marshal(specs.Process{Args: []string{"sh", "-c", "echo from a file; pwd; id -u; exit 7"}, Cwd: "/etc", User: specs.User{UID: 1000}, Env: []string{"PATH=/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(process, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []with{
		{name: "output and exit code", command: []string{"sh", "-c", "echo out; echo err >&2; exit 6"}, compare: harness.All(exact(6, "^out\n$"), harness.ErrorHas("err"))},
		{name: "killed by a signal", command: []string{"sh", "-c", "kill -9 $$"}, compare: exact(137, "")},
		{name: "stdin", command: []string{"cat"}, stdin: "through", compare: exact(0, "^through$")},
		{name: "terminal", flags: []string{"--tty"}, command: []string{"sh", "-c", "tty; exit 2"}, tty: true, compare: harness.All(harness.SameExit, harness.Exits(2), harness.Prints("/dev/pts/0"))},
		{name: "environment", flags: []string{"--env", "A=b c"}, command: []string{"sh", "-c", `echo "$A|$OWN|$HOME"`}, compare: exact(0, `^b c\|container's\|/root\n$`)},
		{name: "directory", flags: []string{"--cwd", "/var/tmp"}, command: []string{"pwd"}, compare: exact(0, "^/var/tmp\n$")},
		{name: "user", flags: []string{"--user", "1000:50", "--additional-gids", "7"}, command: []string{"sh", "-c", "id -u; id -g; id -G; echo $HOME"}, compare: exact(0, "(?s)^1000\n50\n.*7.*/home/app\n$")},
		{name: "user name is no number", flags: []string{"--user", "1000x"}, command: []string{"id"}, compare: harness.Same},
		{name: "capabilities", flags: []string{"--cap", "CAP_KILL"}, command: []string{"grep", "CapInh", "/proc/self/status"}, compare: harness.SameExit},
		{name: "no new privileges", flags: []string{"--no-new-privs"}, command: []string{"grep", "NoNewPrivs", "/proc/self/status"}, compare: exact(0, "1")},
		{name: "process file", flags: []string{"--process", process}, compare: exact(7, "^from a file\n/etc\n1000\n$")},
		{name: "same cgroup", command: []string{"sh", "-c", "cmp /proc/1/cgroup /proc/self/cgroup && echo same"}, compare: exact(0, "^same\n$")},
		{name: "no such command", command: []string{"nosuch"}, compare: harness.All(harness.Same, harness.Exits(255), harness.ErrorHas("executable file not found in \\$PATH"))},
		{name: "not executable", command: []string{"/etc/passwd"}, compare: harness.All(harness.Same, harness.Exits(255), harness.ErrorHas("permission denied"))},
		{name: "no such directory", flags: []string{"--cwd", "/etc/passwd/x"}, command: []string{"true"}, compare: harness.All(harness.SameExit, harness.SameErrorShape)},
		{name: "no command", compare: harness.All(harness.SameErrorShape, harness.ErrorHas("process args|command|process.args"))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				args := append(append([]string{"exec"}, tc.flags...), containers[p.Name].ID)
				return box.Run(t, harness.Cmd{Args: drivers[p.Name].Args(append(args, tc.command...)...), Stdin: tc.stdin, TTY: tc.tty})
			}, tc.compare)
		})
	}
	t.Run("detached with a pid file", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d, c := drivers[p.Name], containers[p.Name]
			dir := box.TempDir(t)
			// The pid file is relative to the caller's directory, not to the bundle.
			r := box.Run(t, harness.Cmd{Args: d.Args("exec", "--detach", "--pid-file", "pid", c.ID, "sleep", "7"), Dir: dir})
			text, err := os.ReadFile(filepath.Join(dir, "pid"))
			if err != nil {
				t.Fatalf("%v\n%v", err, r)
			}
			pid, err := strconv.Atoi(string(text))
			if err != nil {
				t.Fatal(err)
			}
			line, err := os.ReadFile("/proc/" + string(text) + "/cmdline")
			for deadline := time.Now().Add(5 * time.Second); !strings.HasPrefix(string(line), "sleep") && time.Now().Before(deadline); {
				// runc returns before the program is executed.
				time.Sleep(10 * time.Millisecond)
				line, err = os.ReadFile("/proc/" + string(text) + "/cmdline")
			}
			return result(r.Exit, pid > 0, strings.ReplaceAll(string(line), "\x00", " "), err)
		}, exact(0, "^0\ntrue\nsleep 7 \n"))
	})
	t.Run("console socket", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d, c := drivers[p.Name], containers[p.Name]
			console := box.Console(t)
			r := d.Do(t, "exec", "--detach", "--tty", "--console-socket", console.Path, c.ID, "sh", "-c", "tty; read a; echo got $a")
			console.WriteTo(t, "word\n")
			return result(r.Exit, console.Output(t))
		}, harness.SameExit, harness.Prints("(?s)^0\n.*/dev/pts/0\r?\n.*got word\r?\n"))
	})
	t.Run("preserved descriptors", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d, c := drivers[p.Name], containers[p.Name]
			return box.Run(t, harness.Cmd{Args: d.Args("exec", "--preserve-fds", "1", c.ID, "sh", "-c", "cat <&3; ls /proc/self/fd | wc -l"), Files: openKept(t)})
		}, exact(0, "^kept\n"))
	})
}

// openKept opens a file in which is "kept".
func openKept(t *testing.T) []*os.File {
	t.Helper()
	name := filepath.Join(box.TempDir(t), "f")
	if err := os.WriteFile(name, []byte("kept\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return []*os.File{f}
}

func TestConsoleSocket(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d, console := box.Bare(t, p), box.Console(t)
		bundle := box.Bundle(t, func(s *specs.Spec) {
			s.Process.Terminal = true
			s.Process.ConsoleSize = &specs.Box{Height: 33, Width: 77}
			s.Process.Args = []string{"sh", "-c", "stty size; ls -l /dev/console | cut -c1; tty; read a; echo got $a"}
		})
		d.Must(t, "create", "--console-socket", console.Path, "--bundle", bundle.Dir, bundle.ID)
		console.Terminal(t) // handed over by create, not by start
		d.Must(t, "start", bundle.ID)
		console.WriteTo(t, "word\n")
		return result(console.Output(t))
	}, harness.SameExit, harness.Prints("(?s)33 77\r?\n.*c\r?\n.*/dev/pts/0\r?\n.*got word\r?\n"))
	for _, tc := range []struct {
		name     string
		terminal bool
		socket   string
		want     string
	}{
		{"a terminal without a socket", true, "", "console"},
		{"a socket without a terminal", false, "SOCKET", "console"},
		{"no such socket", true, "/run/nosuch.sock", "nosuch.sock"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				d := box.Bare(t, p)
				bundle := box.Bundle(t, func(s *specs.Spec) { s.Process.Terminal = tc.terminal })
				args := []string{"create", "--bundle", bundle.Dir}
				if tc.socket != "" {
					args = append(args, "--console-socket", strings.ReplaceAll(tc.socket, "SOCKET", box.Console(t).Path))
				}
				return d.Do(t, append(args, bundle.ID)...)
			}, harness.Same, harness.Exits(1), harness.ErrorHas(tc.want))
		})
	}
}

func TestPreservedDescriptors(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		bundle := box.Bundle(t, harness.Sh("cat <&3; ls /proc/self/fd | wc -l"))
		return box.Run(t, harness.Cmd{Args: d.Args("run", "--preserve-fds", "1", "--bundle", bundle.Dir, bundle.ID), Files: openKept(t)})
	}, exact(0, "^kept\n5\n$"))
	t.Run("not asked for", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			d := box.Bare(t, p)
			bundle := box.Bundle(t, harness.Sh("ls /proc/self/fd | wc -l"))
			return box.Run(t, harness.Cmd{Args: d.Args("run", "--bundle", bundle.Dir, bundle.ID), Files: openKept(t)})
		}, exact(0, "^4\n$"))
	})
}
