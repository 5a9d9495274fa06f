package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// warmRun starts `agentsafectl run` with a command that waits, and returns when the container runs.
func (b *bench) warmRun(id string, args ...string) {
	b.t.Helper()
	// Not b.command's context, which ends before the clean-up.
	cmd := exec.Command(program, append(append([]string{
		"--root", filepath.Join(b.dir, "state"), "--run-dir", filepath.Join(b.dir, "runs"), "--data-dir", filepath.Join(b.dir, "data"),
		"run", "--quiet", "--id", id,
	}, args...), "--", "sh", "-c", warmCommand)...)
	cmd.Dir, cmd.Stderr = b.workspace, os.Stderr
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		cmd.Process.Signal(unix.SIGTERM) //nolint:errcheck // two, which does not wait
		cmd.Process.Signal(unix.SIGINT)  //nolint:errcheck // likewise
		cmd.Wait()                       //nolint:errcheck // it was killed
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if out, _, status := b.ctl("exec", id, "--", "true"); status == 0 {
			return
		} else if time.Now().After(deadline) {
			b.t.Fatalf("container %s does not run: %s", id, out)
		}
	}
}

// execJSON runs `agentsafectl exec --json`.
func (b *bench) execJSON(args ...string) (r execReport, status int) {
	b.t.Helper()
	out, stderr, status := b.ctl(append([]string{"exec", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		b.t.Fatalf("%v in %q, %s", err, out, stderr)
	}
	return r, status
}

func TestExec_JSON(t *testing.T) {
	b := newBench(t)
	b.warmRun("warm-one", "--profile", "offline")
	r, status := b.execJSON("warm-one", "--", "sh", "-c", `echo out; printf 'e\033[1m' >&2; echo x >made; exit 3`)
	if status != 3 || r.ExitCode != 3 || r.Stdout != "out\n" || r.Stderr != `e\x1b[1m` || r.Error != "" || r.Profile != "offline" || r.ID != "warm-one" {
		t.Errorf("%d %+v", status, r.Result)
	}
	if r.Transaction == 0 || changed(r.FilesChanged) != "add made" || r.Status != "committed" {
		t.Errorf("changes: %+v", r.Result)
	}
	if r, status := b.execJSON("warm", "--", "cat", "made"); status != 0 || r.Stdout != "x\n" {
		t.Errorf("by the beginning of the id: %d %+v", status, r)
	}
	if r, status := b.execJSON("--max-output", "1k", "warm-one", "--", "head", "-c", "300000000", "/dev/zero"); status != 0 || r.StdoutTruncated != 300000000-1024 {
		t.Errorf("much output: %d, %d dropped", status, r.StdoutTruncated)
	}
	if r, status := b.execJSON("-e", "A=b", "--cwd", "/tmp", "warm-one", "--", "sh", "-c", "echo $A; pwd"); status != 0 || r.Stdout != "b\n/tmp\n" {
		t.Errorf("environment and directory: %d %+v", status, r)
	}
	if r, _ := b.execJSON("warm-one", "--", "sh", "-c", "echo $A"); r.Stdout != "\n" {
		t.Errorf("a variable of one exec is in the next: %+v", r)
	}
	if r, status := b.execJSON("warm-one", "--", "/nowhere"); status != 127 || r.Error == "" {
		t.Errorf("no such program: %d %+v", status, r)
	}
	if r, status := b.execJSON("warm-one", "--", "/etc/hosts"); status != 126 || r.Error == "" {
		t.Errorf("no program: %d %+v", status, r)
	}
	if r, status := b.execJSON("nobody", "--", "true"); status != 125 || !strings.Contains(r.Error, "nobody") {
		t.Errorf("no such container: %d %+v", status, r)
	}
	if out, stderr, status := b.ctl("exec", "warm-one", "--", "sh", "-c", "echo a; echo b >&2; exit 4"); status != 4 || out != "a\n" || !strings.HasPrefix(stderr, "b\n") {
		t.Errorf("without --json: %d %q %q", status, out, stderr)
	}
}

// TestExec_Timeout: the limit ends what forked twice, left its session and ignores signals, and nothing else.
func TestExec_Timeout(t *testing.T) {
	b := newBench(t)
	b.warmRun("warm-two", "--profile", "agent")
	r, status := b.execJSON("--timeout", "400ms", "warm-two", "--",
		"sh", "-c", `trap "" TERM; (setsid sh -c 'trap "" TERM; exec sleep 4322' &); while :; do sleep 1; done`)
	if status != 124 || !r.TimedOut || r.ExitCode != 137 || r.DurationMillis > 20000 {
		t.Errorf("%d %+v", status, r.Result)
	}
	if r, _ := b.execJSON("warm-two", "--", "sh", "-c", `cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep -c 'sleep [4]322'; true`); strings.TrimSpace(r.Stdout) != "0" {
		t.Errorf("what the command left behind is still there: %+v", r.Result)
	}
	if r, status := b.execJSON("--timeout", "30s", "warm-two", "--", "sh", "-c", "exit 7"); status != 7 || r.TimedOut {
		t.Errorf("a short command: %d %+v", status, r.Result)
	}
	// The caller goes away: so does the command.
	cmd := exec.Command(b.wrapper(), "exec", "warm-two", "--", "sleep", "4323")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := func() string {
		r, _ := b.execJSON("warm-two", "--", "sh", "-c", `cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep -c 'sleep [4]323'; true`)
		return strings.TrimSpace(r.Stdout)
	}
	wait := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); seen() != want; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("want %s processes", want)
			}
		}
	}
	wait("1")
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() //nolint:errcheck // it was ended
	wait("0")
}

// TestExec_Limits: what the kernel refused while a command ran is told with it.
func TestExec_Limits(t *testing.T) {
	b := newBench(t)
	profile := filepath.Join(b.dir, "few.yaml")
	text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: few}\nextends: agent\nlimits: {memory: 48MiB, pids: 24}\n"
	if err := os.WriteFile(profile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	b.warmRun("warm-three", "--profile", profile)
	kinds := func(r execReport) string {
		var out []string
		for _, d := range r.Denials {
			out = append(out, d.Kind)
		}
		return strings.Join(out, " ")
	}
	if r, _ := b.execJSON("warm-three", "--", "sh", "-c", "i=0; while [ $i -lt 60 ]; do sleep 1 & i=$((i+1)); done; wait"); kinds(r) != "processes" {
		t.Errorf("processes: %+v", r.Result)
	}
	// The shell has given up, and its children hold the places for a second.
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, status := b.execJSON("warm-three", "--", "true"); status == 0 {
			break
		}
	}
	if r, _ := b.execJSON("warm-three", "--", "sh", "-c", "head -c 200m /dev/zero | tail -c 150m >/dev/null; true"); kinds(r) != "memory" {
		t.Errorf("memory: %+v %s", r.Result, r.Error)
	}
	if r, _ := b.execJSON("warm-three", "--", "true"); kinds(r) != "" {
		t.Errorf("nothing: %+v", r.Result)
	}
}
