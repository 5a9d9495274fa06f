package rootless

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestRun runs tasks as an ordinary user and looks at what they get.
func TestRun(t *testing.T) {
	for _, tc := range []struct {
		name    string
		user    *user
		flags   []string
		command string
		exit    int
		stdout  string // expression
		stderr  string // expression
	}{
		{
			name: "own ids and no others", user: rick, command: "id -un; id; cat /proc/self/uid_map /proc/self/gid_map",
			stdout: `^rick\nuid=4242\(rick\) gid=4242\(rick\) groups=4242\(rick\)\n\s+4242\s+0\s+1\n\s+4242\s+0\s+1\n$`,
		},
		{
			name: "as for root: no capabilities, no new privileges, filters", user: rick,
			command: "grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status",
			stdout:  `^CapInh:\t0+\nCapPrm:\t0+\nCapEff:\t0+\nCapBnd:\t0+\nCapAmb:\t0+\nNoNewPrivs:\t1\nSeccomp:\t2\n$`,
		},
		{name: "exit status", user: rick, command: "exit 7", exit: 7},
		{name: "the folder is the user's", user: rick, command: "echo made >made && stat -c %u made; rm made", stdout: "^4242\n$"},
		{name: "loopback and nothing else", user: rick, command: "cat /proc/net/dev | grep -c :", stdout: "^1\n$"},
		{name: "no host processes", user: rick, command: "cd /proc; echo [0-9]*", stdout: `^1( \d+)?\n$`},
		{name: "no cgroups of the host", user: rick, command: "ls -A /sys/fs/cgroup | wc -l; touch /sys/fs/cgroup/x", exit: 1, stdout: "^0\n$"},
		{name: "no mounts, no namespaces", user: rick, command: "mount -t tmpfs x /mnt || unshare -U true || unshare -r mount -t tmpfs x /mnt", exit: 1},
		{name: "no other user's files", user: rick, command: "ls /root || ls " + "/home", stdout: "(?s).*"},
		{name: "time-out", user: rick, flags: []string{"--timeout", "1s"}, command: "sleep 1000 & sleep 1000", exit: 124, stderr: "ran longer than 1s"},
		{name: "what has no limit is said", user: rick, command: "true", stderr: `note: no cgroup is delegated to this user for memory, cpu, pids`},
		{
			name: "number of processes", user: rick, flags: []string{"--pids-limit", "6"},
			command: "for i in 1 2 3 4 5 6 7 8; do sleep 5 & done; wait", exit: 2, stderr: "(?i)cannot fork",
		},
		{
			name: "memory is not approximated", user: rick, flags: []string{"--memory", "100m"}, command: "true", exit: 125,
			stderr: `refused: linux.resources.memory.limit: controller memory is not delegated to this user \(systemd-run --user --scope -p Delegate=yes`,
		},
		{name: "nor are processors", user: rick, flags: []string{"--cpus", "0.5"}, command: "true", exit: 125, stderr: `controller cpu is not delegated`},
		{name: "nobody else", user: rick, flags: []string{"--user", "0"}, command: "true", exit: 125, stderr: "run as that user, 4242, and nobody else"},
		{name: "one id: own ids", user: solo, command: "id -u; cat /proc/self/uid_map; cat /proc/self/setgroups", stdout: `^4343\n\s+4343\s+0\s+1\ndeny\n$`},
		{
			name: "one id: the groups stay, which is said", user: solo, command: "grep Groups /proc/self/status", stdout: `65534`,
			stderr: `note: one id is mapped, and the task stays in this user's groups: /etc/subuid lists no ids for this user`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"agentsafectl", "run"}, tc.flags...)
			r := tc.user.do(t, append(args, "--", "sh", "-c", tc.command)...)
			if r.Exit != tc.exit || !regexp.MustCompile(tc.stdout).MatchString(r.Stdout) || !regexp.MustCompile(tc.stderr).MatchString(r.Stderr) {
				t.Errorf("want exit %d, output %q, error %q:\n%v", tc.exit, tc.stdout, tc.stderr, r)
			}
		})
	}
}

// TestImage runs on an image whose files belong to several users, which takes subordinate ids.
func TestImage(t *testing.T) {
	busybox, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(busybox.Archive)
	if err != nil {
		t.Fatal(err)
	}
	for u, want := range map[*user]string{rick: "^0\n2\nwritten\n$", solo: "subordinate IDs in /etc/subuid"} {
		archive := filepath.Join(u.folder(t), "image.tar")
		write(t, u, archive, string(data))
		r := u.do(t, "agentsafectl", "run", "-q", "--image", archive, "--", "sh", "-c",
			"id -u; cat /proc/self/uid_map | wc -l; echo written >/etc/new && rm -rf /var/tmp && cat /etc/new")
		if (r.Exit == 0) != (u == rick) || !regexp.MustCompile(want).MatchString(r.Stdout+r.Stderr) {
			t.Errorf("%s: want %q:\n%v", u.name, want, r)
		}
	}
}

// TestTerminal has a task on the user's terminal.
func TestTerminal(t *testing.T) {
	c := rick.cmd("agentsafectl", "run", "-q", "--", "sh", "-c", "tty; read a; echo got $a")
	c.TTY, c.Stdin = true, "word\n"
	if r := box.Run(t, c); r.Exit != 0 || !strings.Contains(r.Stdout, "/dev/pts/0") || !strings.Contains(r.Stdout, "got word") {
		t.Error(r)
	}
}

// TestWorkspace overlays a user's folder, and promotes from the layer.
func TestWorkspace(t *testing.T) {
	dir := rick.folder(t)
	for _, name := range []string{"keep", "change", "gone"} {
		write(t, rick, filepath.Join(dir, name), "before\n")
	}
	const id = "tidy"
	rick.must(t, "agentsafectl", "run", "-q", "--id", id, "--profile", "offline", "--workspace", dir, "--", "sh", "-c",
		"set -e; echo after >change; rm gone; mkdir -p sub/deep; echo new >sub/deep/new; ln -s keep link; mv keep kept; rm -rf sub; mkdir sub; echo opaque >sub/x")
	if data, err := os.ReadFile(filepath.Join(dir, "change")); err != nil || string(data) != "before\n" {
		t.Errorf("the folder was written to: %q, %v", data, err)
	}
	diff := rick.must(t, "agentsafectl", "diff", "--json", id)
	for _, want := range []string{`"change"`, `"gone"`, `"sub/x"`, `"link"`, `"kept"`} {
		if !strings.Contains(diff, want) {
			t.Errorf("diff lacks %s: %s", want, diff)
		}
	}
	rick.must(t, "agentsafectl", "promote", id, "change", "gone", "sub")
	for name, want := range map[string]string{"change": "after\n", "sub/x": "opaque\n", "keep": "before\n"} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v; want %q", name, data, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "gone")); !os.IsNotExist(err) {
		t.Errorf("gone: %v", err)
	}
	if r := rick.do(t, "stat", "-c", "%u %g", filepath.Join(dir, "sub/x")); r.Stdout != "4242 4242\n" {
		t.Error(r)
	}
	// What belongs to a user is nothing that root follows.
	data := filepath.Join(rick.home, ".local/share/agentsafe")
	root := box.Run(t, harness.Cmd{Args: []string{filepath.Join(installed, "agentsafectl"), "diff", "--data-dir", data, id}})
	if root.Exit == 0 || !strings.Contains(root.Stderr, "want uid 0") {
		t.Error(root)
	}
}
