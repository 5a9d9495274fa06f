package docker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// runCase is one `docker run --rm`: flags, image, command.
type runCase struct {
	name    string
	flags   []string
	command []string
	stdin   string
	tty     bool
	compare harness.Comparison
}

func sh(script string) []string { return []string{"sh", "-c", script} }

func exact(code int, prints string) harness.Comparison {
	return harness.All(harness.Same, harness.Exits(code), harness.Prints(prints))
}

// size prints the size of the terminal once the client has told it, which it does after the start.
const size = `for i in $(seq 100); do s=$(stty size 2>/dev/null); [ "$s" = "24 80" ] && break; sleep 0.05; done; echo $s`

func TestRun(t *testing.T) {
	// The last path component of a cgroup file's v2 name: each of these is read from whichever there is.
	const (
		memory = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"
		quota  = "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cat /sys/fs/cgroup/cpu.max"
		weight = "cat /sys/fs/cgroup/cpu/cpu.shares 2>/dev/null || cat /sys/fs/cgroup/cpu.weight"
		pids   = "cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max"
		cpus   = "cat /sys/fs/cgroup/cpuset/cpuset.cpus 2>/dev/null || cat /sys/fs/cgroup/cpuset.cpus"
	)
	for _, tc := range []runCase{
		{name: "output and exit code", command: sh("echo out; echo err >&2; exit 3"), compare: harness.All(exact(3, "^out\n$"), harness.ErrorHas("err"))},
		{name: "killed by a signal", command: sh("sh -c 'kill -9 $$'; exit $?"), compare: exact(137, "")},
		{name: "stdin", flags: []string{"-i"}, command: sh("cat; echo end"), stdin: "one\ntwo\n", compare: exact(0, "^one\ntwo\nend\n$")},
		{name: "a megabyte through stdin", flags: []string{"-i"}, command: sh("wc -c"), stdin: strings.Repeat("x", 1<<20), compare: exact(0, "^1048576\n$")},
		{name: "terminal", flags: []string{"-i", "-t"}, command: sh("tty; " + size + "; test -t 0 -a -t 1 -a -t 2 && echo terminal; exit 4"), tty: true, compare: exact(4, `(?s)/dev/pts/0.*24 80.*terminal`)},
		// A client whose container has ended before it could tell the size complains of that.
		{name: "terminal takes input", flags: []string{"-i", "-t"}, command: sh("read a; echo got $a;" + size), stdin: "hello\n", tty: true, compare: exact(0, "got hello")},
		{name: "working directory made", flags: []string{"-w", "/new/dir"}, command: sh("pwd; stat -c %u:%g:%a ."), compare: exact(0, "^/new/dir\n0:0:755")},
		{
			name: "many settings at once", // each section of the output is one setting
			flags: []string{
				"-e", "A=b c", "-e", "EMPTY=", "-w", "/var/tmp", "--user", "app", "--group-add", "7", "--hostname", "here", "--add-host", "peer:192.0.2.1",
				"--ulimit", "nofile=1000:2000", "--ulimit", "core=0", "--tmpfs", "/scratch:size=1m,mode=0777,noexec", "--shm-size", "8m",
				"--sysctl", "net.ipv4.ip_unprivileged_port_start=77", "--oom-score-adj", "500", "--security-opt", "no-new-privileges", "--cap-drop", "ALL",
			},
			command: sh(`echo "$A|${EMPTY-unset}|$HOME|$PATH|${HOSTNAME:+set}"; pwd; id; hostname; cat /etc/hostname; grep peer /etc/hosts
				ulimit -Sn; ulimit -Hn; ulimit -c; mount | grep /scratch; dd if=/dev/zero of=/scratch/f bs=1M count=2 2>&1 | grep -c "No space"
				df -k /dev/shm | tail -1 | awk '{print $2}'; cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/self/oom_score_adj
				grep -E "Cap|NoNewPrivs" /proc/self/status`),
			compare: exact(0, `(?s)^b c\|\|/home/app\|.*\|set\n/var/tmp\nuid=1000.*7.*\nhere\n.*1000\n2000\n0\n.*noexec.*\n1\n8192\n77\n500\n.*CapEff:\t0+\n.*NoNewPrivs:\t1`),
		},
		{
			name: "nothing set", // what every container gets
			command: sh(`cd /dev; for d in *; do test $d = agentsafe || stat -c "%n %F %t:%T %a" $d; done; ls -l /dev/fd /dev/stdin | sed "s/.*dev/dev/"
				cut -d" " -f2 /proc/mounts | grep -v -e cgroup -e agentsafe | sort; cat /proc/kcore | wc -c; ls /proc/acpi /sys/firmware | wc -l
				echo 1 >/proc/sys/kernel/domainname; echo $?; echo $$; set -- /proc/[0-9]*; echo $#; ulimit -a; umask
				probe dial tcp 127.0.0.1:9 2>/dev/null; cat; ls /proc/self/fd | wc -l`),
			compare: exact(0, `(?s)null character special file 1:3 666.*/dev/mqueue\n.*0022\nECONNREFUSED\n`),
		},
		{name: "user by number", flags: []string{"--user", "1234:2345"}, command: sh("id; echo $HOME"), compare: exact(0, `uid=1234 gid=2345`)},
		{name: "user unknown", flags: []string{"--user", "nosuch"}, command: sh("id"), compare: harness.All(harness.SameExit, harness.ErrorHas("nosuch"))},
		{name: "memory", flags: []string{"--memory", "64m"}, command: sh(memory), compare: exact(0, "67108864")},
		{name: "memory used up", flags: []string{"--memory", "16m", "--memory-swap", "16m"}, command: sh("exec tail /dev/zero"), compare: exact(137, "")},
		{name: "cpus", flags: []string{"--cpus", "0.5", "--cpu-shares", "512", "--cpuset-cpus", "0"}, command: sh(quota + ";" + weight + ";" + cpus), compare: exact(0, "50000")},
		{name: "processes", flags: []string{"--pids-limit", "20"}, command: sh(pids + "; (for i in $(seq 40); do sleep 2 & done) 2>&1 | grep -c fork"), compare: exact(0, "^20\n")},
		{name: "no network", flags: []string{"--network", "none"}, command: sh("ls /sys/class/net; ip -o addr show lo | wc -l; probe dial tcp 192.0.2.1:80 2>/dev/null; exit 0"), compare: exact(0, "^lo\n.*\nENETUNREACH\n$")},
		{name: "bridge", flags: []string{"--network", "bridge"}, command: sh("ls /sys/class/net; ip -o -4 addr show eth0 | grep -o 172.30.0; ip route | grep default"), compare: exact(0, "(?s)eth0.*172.30.0.*default via 172.30.0.1")},
		{name: "read only root", flags: []string{"--read-only", "--tmpfs", "/tmp"}, command: sh("touch /x; echo $?; touch /tmp/x && echo written"), compare: exact(0, "^1\nwritten\n$")},
		{name: "an init process", flags: []string{"--init"}, command: sh("ps -o pid,comm | head -3; echo $$"), compare: harness.All(harness.SameExit, harness.SameErrorShape)},
		{name: "no such command", command: []string{"no-such-command"}, compare: harness.All(harness.SameExit, harness.Exits(127), harness.ErrorHas("executable file not found in \\$PATH"))},
		{name: "no such path", command: []string{"/no/such/command"}, compare: harness.All(harness.SameExit, harness.Exits(127), harness.ErrorHas("no such file or directory"))},
		{name: "not executable", command: []string{"/etc/passwd"}, compare: harness.All(harness.SameExit, harness.Exits(126), harness.ErrorHas("permission denied"))},
		{name: "a directory", command: []string{"/etc"}, compare: harness.All(harness.SameExit, harness.ErrorHas("permission denied|is a directory"))},
		{name: "working directory is a file", flags: []string{"-w", "/etc/passwd"}, command: sh("pwd"), compare: harness.All(harness.SameExit, harness.ErrorHas("not a directory|Cannot mkdir"))},
		{name: "memory below the minimum", flags: []string{"--memory", "1k"}, command: sh("id"), compare: harness.All(harness.SameExit, harness.ErrorHas("memory"))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				args := append([]string{"run", "--rm", "--runtime", p.Name}, tc.flags...)
				args = append(append(args, image), tc.command...)
				return box.Run(t, harness.Cmd{Args: engine.Args(args...), Stdin: tc.stdin, TTY: tc.tty})
			}, tc.compare)
		})
	}
}

func TestVolumes(t *testing.T) {
	for _, tc := range []struct {
		name, option, script string
		compare              harness.Comparison
		wantFile             string // in the host's directory, afterwards
	}{
		{"read write", "", "cat /v/in; echo new >/v/out; stat -c %u:%a /v/in", exact(0, "given"), "new\n"},
		{"read only", ":ro", "cat /v/in; echo new >/v/out; echo $?", exact(0, "given\n1\n"), ""},
		{"a file", "/in:ro", "cat /v; mount | grep -c ' /v '", harness.SameExit, ""},
		{"shared propagation", ":rshared", "cat /v/in", harness.SameExit, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				dir := box.TempDir(t)
				if err := os.WriteFile(filepath.Join(dir, "in"), []byte("given\n"), 0o640); err != nil {
					t.Fatal(err)
				}
				source, option := dir, tc.option
				if file, ok := strings.CutPrefix(option, "/in"); ok {
					source, option = filepath.Join(dir, "in"), file
				}
				r := engine.Do(t, "run", "--rm", "--runtime", p.Name, "-v", source+":/v"+option, image, "sh", "-c", tc.script)
				if got, _ := os.ReadFile(filepath.Join(dir, "out")); string(got) != tc.wantFile {
					t.Errorf("the host's file has %q, want %q\n%v", got, tc.wantFile, r)
				}
				return r
			}, tc.compare)
		})
	}
}

func TestNamedVolumeKeepsData(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		volume := box.ID()
		t.Cleanup(func() { engine.Must(t, "volume", "rm", volume) })
		engine.Must(t, "run", "--rm", "--runtime", p.Name, "-v", volume+":/data", image, "sh", "-c", "echo kept >/data/f")
		return engine.Do(t, "run", "--rm", "--runtime", p.Name, "-v", volume+":/data", image, "cat", "/data/f")
	}, exact(0, "^kept\n$"))
}

func TestManyAtOnce(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		var running []*harness.Running
		for range 6 {
			running = append(running, box.Start(t, harness.Cmd{Args: engine.Args("run", "--rm", "--runtime", p.Name, image, "sh", "-c", "echo one; exit 5")}))
		}
		var last harness.Result
		for _, r := range running {
			last = r.Wait(t)
			if last.Exit != 5 || last.Stdout != "one\n" {
				t.Errorf("one of many: %v", last)
			}
		}
		return last
	})
}
