package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// These tests run the real program as root on the real kernel. Each has state,
// run and data directories of its own, and they must be empty afterwards.

// program is the built agentsafectl, made by TestMain beside the helper.
var program string

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run()) // the tests that need it say so
	}
	dir, err := os.MkdirTemp("", "agentsafectl-test")
	if err == nil {
		program = filepath.Join(dir, "agentsafectl")
		err = build(program, ".")
	}
	if err == nil {
		err = errors.Join(helper(dir, "agentsafe-seccomp"), helper(dir, "agentsafe-gateway"))
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the programs under test:", err)
	} else {
		code = m.Run()
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func build(out, pkg string) error {
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", out, pkg)
	if data, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, data)
	}
	return nil
}

// helper takes a program that `make` has built, or builds it.
func helper(dir, name string) error {
	built, err := filepath.Abs("../../bin/" + name)
	if err != nil {
		return err
	}
	out := filepath.Join(dir, name)
	if _, err := os.Stat(built); err == nil {
		return os.Symlink(built, out)
	}
	return build(out, "../"+name)
}

// bench is one test's directories.
type bench struct {
	t         *testing.T
	dir       string
	workspace string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("probe root: not root")
	}
	b := &bench{t: t, dir: t.TempDir()}
	b.workspace = filepath.Join(b.dir, "workspace")
	// t.TempDir is for root alone, and the task is somebody else.
	if err := errors.Join(os.Mkdir(b.workspace, 0o755), os.Chmod(b.dir, 0o755), os.Chmod(filepath.Dir(b.dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, sub := range []string{"state", "runs", "data/runs"} {
			left, err := os.ReadDir(filepath.Join(b.dir, sub))
			if err != nil && !errors.Is(err, os.ErrNotExist) || len(left) != 0 {
				t.Errorf("left in %s: %v, %v", sub, left, err)
			}
		}
		if left := mounts(t, b.dir); len(left) > 0 {
			t.Errorf("left mounted:\n%s", strings.Join(left, "\n"))
		}
	})
	return b
}

// mounts lists what is mounted on or from something below dir. What other tests of the machine mount is theirs.
func mounts(t *testing.T, dir string) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, dir+"/") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// command makes `agentsafectl run args...` with the test's directories.
func (b *bench) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	b.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, append([]string{
		"--root", filepath.Join(b.dir, "state"), "--run-dir", filepath.Join(b.dir, "runs"),
		"--data-dir", filepath.Join(b.dir, "data"), "run",
	}, args...)...)
	cmd.Dir = b.workspace
	return cmd
}

// run runs a command to its end and returns output, error output and status.
func (b *bench) run(stdin string, args ...string) (stdout, stderr string, status int) {
	b.t.Helper()
	cmd := b.command(args...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func TestRunExitStatus(t *testing.T) {
	b := newBench(t)
	if err := os.WriteFile(filepath.Join(b.workspace, "plain"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args []string
		want int
		text string // in the error output
	}{
		"success":            {[]string{"--", "true"}, 0, ""},
		"own status":         {[]string{"--", "sh", "-c", "exit 7"}, 7, ""},
		"killed by a signal": {[]string{"--", "sh", "-c", "(sh -c 'kill -9 $$'); exit $?"}, 137, ""},
		"no such command":    {[]string{"--", "no-such-command"}, exitNoCommand, "executable file not found"},
		"no such path":       {[]string{"--", "./no-such"}, exitNoCommand, "no-such"},
		"not executable":     {[]string{"--", "./plain"}, exitNoExec, "permission denied"},
		"a directory":        {[]string{"--", "/etc"}, exitNoExec, "permission denied"},
		"time-out":           {[]string{"--timeout", "500ms", "--", "sleep", "100"}, exitTimeout, "longer than 500ms"},
		"no command":         {nil, exitOwn, "no command"},
		"unknown flag":       {[]string{"--no-such-flag", "--", "true"}, exitOwn, "unknown flag"},
		"unknown profile":    {[]string{"--profile", "no-such", "--", "true"}, exitOwn, "no-such"},
		"id with a slash":    {[]string{"--id", "a/b", "--", "true"}, exitOwn, "invalid container ID"},
		"id that climbs":     {[]string{"--id", "..", "--", "true"}, exitOwn, "invalid container ID"},
		"workspace missing":  {[]string{"--workspace", "no-such", "--", "true"}, exitOwn, "--workspace"},
		"workspace a file":   {[]string{"--workspace", "plain", "--", "true"}, exitOwn, "not a directory"},
		"workspace /":        {[]string{"--workspace", "/", "--", "true"}, exitOwn, "system directory"},
		"root and image":     {[]string{"--rootfs", "/x", "--image", "y", "--", "true"}, exitOwn, "rootfs"},
		"rootfs missing":     {[]string{"--rootfs", "/no/such", "--", "true"}, exitOwn, "not a directory"},
		"image missing":      {[]string{"--image", "/no/such", "--", "true"}, exitOwn, "no such file"},
		"image is no tar":    {[]string{"--image", "plain", "--", "true"}, exitOwn, "read image"},
		"user by name":       {[]string{"--user", "root", "--", "true"}, exitOwn, "--user"},
		"bad memory":         {[]string{"--memory", "lots", "--", "true"}, exitOwn, "--memory"},
		"negative time-out":  {[]string{"--timeout", "-1s", "--", "true"}, exitOwn, "negative"},
		"unknown network":    {[]string{"--network", "bridge", "--", "true"}, exitOwn, "bridge"},
		"host network":       {[]string{"--network", "host", "--", "true"}, exitOwn, "network"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			out, errOut, status := b.run("", tt.args...)
			if status != tt.want || !strings.Contains(errOut, tt.text) || out != "" {
				t.Errorf("status %d, want %d; output %q, error output %q, want %q", status, tt.want, out, errOut, tt.text)
			}
		})
	}
}

func TestRunIsHardened(t *testing.T) {
	b := newBench(t)
	out, errOut, status := b.run("", "--", "cat", "/proc/self/status")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errOut)
	}
	for _, want := range []string{
		"NoNewPrivs:\t1", "Seccomp:\t2", "CapInh:\t0000000000000000", "CapPrm:\t0000000000000000",
		"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000",
	} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

// TestRunAsOwner: the task is the owner of its folder, and only that.
func TestRunAsOwner(t *testing.T) {
	b := newBench(t)
	const uid = 4242
	if err := os.Chown(b.workspace, uid, uid); err != nil {
		t.Fatal(err)
	}
	out, errOut, status := b.run("", "--", "sh", "-c", `id -u; id -G; echo "$HOME $USER"; pwd; echo x >made; echo y >"$HOME/z"; ls -A "$HOME" /root 2>&1`)
	want := fmt.Sprintf("4242\n4242\n/home/agent agent\n%s\n", b.workspace)
	if status != 0 && status != 2 || !strings.HasPrefix(out, want) || !strings.Contains(out, "Permission denied") {
		t.Errorf("status %d, output %q, want %q first; %s", status, out, want, errOut)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(b.workspace, "made"), &st); err != nil || st.Uid != uid || st.Gid != uid {
		t.Errorf("made by %d:%d, %v", st.Uid, st.Gid, err)
	}
}

// TestAttack_HostRoot: what the task must not see or change of the host.
func TestAttack_HostRoot(t *testing.T) {
	b := newBench(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hunter2"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{
		"cat /etc/shadow", "cat /etc/gshadow", "cat /etc/machine-id", "ls /etc/ssh", "ls /root/.ssh", "ls /var/lib/dpkg",
		"cat " + secret, "ls /boot/*", "ls /sys/firmware/*", "cat /proc/kcore", "cat /proc/1/environ | grep -a SUDO",
		"touch /usr/x", "touch /etc/x", "touch /x", "rm /etc/passwd", "echo 1 >/proc/sys/kernel/panic", "touch /sys/fs/cgroup/x",
		"mount -t tmpfs none /mnt", "unshare -U true", "chroot / true", "mknod /tmp/d c 1 5", "ls /dev/sd* /dev/vd* /dev/mem",
		"kill -0 " + strconv.Itoa(os.Getpid()), "su -c true", "ls /run/agentsafectl /run/docker.sock",
	} {
		if out, _, status := b.run("", "--", "sh", "-c", script); status == 0 {
			t.Errorf("%s: succeeded: %s", script, out)
		}
	}
}

func TestRunEnvironment(t *testing.T) {
	b := newBench(t)
	t.Setenv("GITHUB_TOKEN", "hunter2")
	t.Setenv("PASSED_ON", "yes")
	out, errOut, status := b.run("", "-e", "A=1 2", "--env", "PASSED_ON", "-e", "LANG=C", "--", "env")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errOut)
	}
	if strings.Contains(out, "hunter2") || strings.Contains(out, ownNamespaceEnv) {
		t.Errorf("environment:\n%s", out)
	}
	for _, want := range []string{"A=1 2\n", "PASSED_ON=yes\n", "LANG=C\n", "HOME=", "PATH="} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func TestRunPassesStreams(t *testing.T) {
	b := newBench(t)
	out, _, status := b.run("hello", "--", "sh", "-c", "cat; echo err >&2")
	if out != "hello" || status != 0 {
		t.Errorf("output %q, status %d", out, status)
	}
	big := strings.Repeat("0123456789abcdef", 1<<16)
	if out, _, status := b.run(big, "--", "cat"); out != big || status != 0 {
		t.Errorf("%d bytes of %d, status %d", len(out), len(big), status)
	}
	// Through files, which the task does not get to hold.
	cmd := b.command("--", "sh", "-c", "cat; readlink /proc/self/fd/0 /proc/self/fd/1; echo again >/dev/stdout")
	in, err := os.Open("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	file, err := os.OpenFile(filepath.Join(b.dir, "out"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd.Stdin, cmd.Stdout = in, file
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file.Name())
	if err != nil || strings.Count(string(data), "pipe:[") != 2 || !strings.HasSuffix(string(data), "again\n") {
		t.Errorf("file holds %q, %v", data, err)
	}
}

// TestAttack_DirectoryAsStdin: a directory handed in would be a way out.
func TestAttack_DirectoryAsStdin(t *testing.T) {
	b := newBench(t)
	cmd := b.command("--", "ls", "/proc/self/fd/0/etc/shadow")
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd.Stdin = dir
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != exitOwn {
		t.Errorf("error %v", err)
	}
}

func TestRunJSON(t *testing.T) {
	b := newBench(t)
	out, errOut, status := b.run("in", "--json", "--id", "named", "--", "sh", "-c", `cat; printf '\377' >&2; exit 3`)
	var got struct {
		ID       string `json:"id"`
		Profile  string `json:"profile"`
		ExitCode int    `json:"exitCode"`
		Stdout   string `json:"stdout"`
		Stderr   struct {
			Base64 []byte `json:"base64"`
		} `json:"stderr"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %q %q", err, out, errOut)
	}
	if status != 3 || got.ExitCode != 3 || got.ID != "named" || got.Profile != "agent" || got.Stdout != "in" || string(got.Stderr.Base64) != "\xff" {
		t.Errorf("status %d, %+v", status, got)
	}
	out, _, status = b.run("", "--json", "--timeout", "300ms", "--", "sleep", "50")
	var late struct {
		ExitCode int  `json:"exitCode"`
		TimedOut bool `json:"timedOut"`
	}
	if err := json.Unmarshal([]byte(out), &late); err != nil || !late.TimedOut || late.ExitCode != exitTimeout || status != exitTimeout {
		t.Errorf("status %d, %+v, %v", status, late, err)
	}
}

// TestAttack_ForksOutliveTheTimeout: children, daemons and a first process that
// ignores signals all go.
func TestAttack_ForksOutliveTheTimeout(t *testing.T) {
	b := newBench(t)
	marker := "31415." + strconv.Itoa(os.Getpid())
	script := fmt.Sprintf("trap '' TERM INT HUP; setsid sleep %s & (sleep %s & ) ; sleep %s; sleep %s", marker, marker, marker, marker)
	started := time.Now()
	_, _, status := b.run("", "--timeout", "1s", "--", "sh", "-c", script)
	if status != exitTimeout || time.Since(started) > 30*time.Second {
		t.Errorf("status %d after %s", status, time.Since(started))
	}
	wantNoProcess(t, marker)
}

func wantNoProcess(t *testing.T, marker string) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range found {
		if data, err := os.ReadFile(p); err == nil && bytes.Contains(data, []byte("sleep\x00"+marker)) {
			t.Errorf("still there: %s", p)
		}
	}
}

func TestRunForwardsSignals(t *testing.T) {
	b := newBench(t)
	tests := map[string]struct {
		script  string
		signals []syscall.Signal
		want    int
	}{
		"handled":              {"trap 'exit 42' TERM; echo up; while :; do sleep 0.1; done", []syscall.Signal{syscall.SIGTERM}, 42},
		"user signal":          {"trap 'exit 43' USR1; echo up; while :; do sleep 0.1; done", []syscall.Signal{syscall.SIGUSR1}, 43},
		"ignored, asked twice": {"trap '' TERM; echo up; while :; do sleep 0.1; done", []syscall.Signal{syscall.SIGTERM, syscall.SIGTERM}, 137},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := b.command("--", "sh", "-c", tt.script)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
			for _, sig := range tt.signals {
				if err := cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				time.Sleep(300 * time.Millisecond) // two pending signals of a kind are one
			}
			err = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != tt.want {
				t.Errorf("status %d (%v), want %d", got, err, tt.want)
			}
		})
	}
}

// TestRunKilledIsSwept: a killed agentsafectl leaves its container, and the next
// one removes it.
func TestRunKilledIsSwept(t *testing.T) {
	b := newBench(t)
	image := busyboxImage(t)
	for name, flags := range map[string][]string{"host": nil, "image": {"--image", image}} {
		t.Run(name, func(t *testing.T) {
			marker := "27182." + strconv.Itoa(os.Getpid())
			cmd := b.command(append(flags, "--id", "victim", "--", "sh", "-c", "echo up; sleep "+marker+"; true")...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
			if _, errOut, status := b.run("", append(flags, "--id", "victim", "--", "true")...); status != exitOwn || !strings.Contains(errOut, "going on") {
				t.Errorf("a second run of the name: status %d, %s", status, errOut)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			cmd.Wait() //nolint:errcheck // it was killed
			if _, errOut, status := b.run("", append(flags, "--id", "victim", "--", "true")...); status != 0 {
				t.Errorf("after the crash: status %d, %s", status, errOut)
			}
			wantNoProcess(t, marker)
		})
	}
}

// TestAttack_Bombs: limits hold for what the task starts.
func TestAttack_Bombs(t *testing.T) {
	b := newBench(t)
	_, errOut, status := b.run("", "--pids-limit", "12", "--timeout", "1m", "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 5 & done; wait")
	if status == 0 || !strings.Contains(errOut, "fork") {
		t.Errorf("forks: status %d, %s", status, errOut)
	}
	// tail keeps its one line in memory.
	_, errOut, status = b.run("", "--memory", "64m", "--timeout", "1m", "--", "sh", "-c", "head -c 512m /dev/zero | tail; exit $?")
	if status != 137 && status != 1 {
		t.Errorf("memory: status %d, %s", status, errOut)
	}
}

// TestRunUnderProfileFile: Landlock is in force, shown with a profile that
// restricts paths.
func TestRunUnderProfileFile(t *testing.T) {
	b := newBench(t)
	profile := filepath.Join(b.dir, "narrow.yaml")
	text := `apiVersion: agentsafe.dev/v1
kind: Profile
metadata: {name: narrow, description: reads programs and writes its folder}
extends: agent
filesystem: {read: [/usr, /lib, /lib64, /bin, /proc, /dev], execute: [/usr, /lib, /lib64, /bin], write: [` + b.workspace + `, /dev/null]}
`
	if err := os.WriteFile(profile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	script := `echo x >in-workspace && cat in-workspace; for f in /tmp/x /var/tmp/x; do echo x >$f; done; cat /etc/passwd; ls /etc`
	out, errOut, _ := b.run("", "--profile", profile, "--", "sh", "-c", script)
	if out != "x\n" || strings.Count(errOut, "Permission denied") != 4 {
		t.Errorf("output %q, error output %q", out, errOut)
	}
	if _, errOut, status := b.run("", "--profile", "./no-such.yaml", "--", "true"); status != exitOwn || !strings.Contains(errOut, "no-such.yaml") {
		t.Errorf("status %d, %s", status, errOut)
	}
}
