package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

const watchedProfile = `apiVersion: agentsafe.dev/v1
kind: Profile
metadata: {name: watched}
extends: lint
limits: {pids: 40}
evidence: {denials: kernel}
`

// canListen skips where the kernel's reports can't be read.
func canListen(t *testing.T) {
	t.Helper()
	r, err := denials.Listen()
	if errors.Is(err, denials.ErrUnsupported) {
		t.Skipf("probe audit: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}

// A task reads its policy and what it was refused, and can't write either; people read the same from outside.
func TestDenials(t *testing.T) {
	canListen(t)
	b := newBench(t)
	if err := os.WriteFile(filepath.Join(b.workspace, "watched.yaml"), []byte(watchedProfile), 0o644); err != nil {
		t.Fatal(err)
	}
	job := `set -e
cat $AGENTSAFE_POLICY; head -c 60 /dev/agentsafe/policy.txt
for f in policy.json policy.txt denials.jsonl new; do if echo x 2>/dev/null >>/dev/agentsafe/$f; then echo "wrote $f"; fi; done
rm -f /dev/agentsafe/policy.json 2>/dev/null || true; test -e /dev/agentsafe/policy.json
until grep -q unshare $AGENTSAFE_DENIALS; do unshare -U true 2>/dev/null || sleep 0.1; done
until grep -q '"count":10' $AGENTSAFE_DENIALS; do unshare -n true 2>/dev/null || true; done
echo ready; read line || true`
	cmd := b.command("-q", "--id", "watched-task", "--profile", filepath.Join(b.workspace, "watched.yaml"), "--workspace", b.workspace, "--", "sh", "-c", job)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the task", func() bool { return strings.Contains(out.String(), "ready\n") || cmd.ProcessState != nil })
	follow := exec.CommandContext(t.Context(), program, "--root", b.dir+"/state", "denials", "--json", "--follow", "watched-t")
	var followed lockedBuffer
	follow.Stdout, follow.Stderr = &followed, &followed
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	table, err := b.in("denials", "watched-task")
	if err != nil || !strings.Contains(table, "syscall  unshare") || !strings.Contains(table, "syscalls: {packs: [") || !strings.Contains(table, "workspace") {
		t.Errorf("%v\n%s", err, table)
	}
	waitFor(t, "the follower", func() bool { return strings.Contains(followed.String(), `"count":10`) })
	in.Close()
	if err := errors.Join(cmd.Wait(), follow.Wait()); err != nil {
		t.Errorf("%v\n%s\n%s", err, out.String(), followed.String())
	}
	var told struct {
		Profile *profiles.Profile `json:"profile"`
		Denials string            `json:"denials"`
	}
	text := out.String()
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&told); err != nil || told.Profile == nil || told.Profile.Name != "watched" || told.Denials != "/dev/agentsafe/denials.jsonl" {
		t.Errorf("policy: %v\n%s", err, text)
	}
	if strings.Contains(text, "wrote ") || !strings.Contains(text, "This task runs under agentsafe, profile watched") {
		t.Errorf("inside:\n%s", text)
	}
	if out, err := b.in("denials", "watched-task"); err == nil || !strings.Contains(out, "no such container") {
		t.Errorf("a container that is gone: %v\n%s", err, out)
	}
}

// A fork bomb meets its limit, and the evidence still says so when the container is gone.
func TestDenials_AfterTheEnd(t *testing.T) {
	canListen(t)
	b := newBench(t)
	profile := strings.Replace(watchedProfile, "{denials: kernel}", `{mode: "on", denials: kernel}`, 1)
	if err := os.WriteFile(filepath.Join(b.workspace, "watched.yaml"), []byte(profile), 0o644); err != nil {
		t.Fatal(err)
	}
	// A process that is gone before anybody looks whose it was is laid to nobody: it is tried again until one was seen.
	job := `until grep -q unshare $AGENTSAFE_DENIALS; do unshare -U true 2>/dev/null; sleep 0.1; done; sleep 60`
	cmd := b.command("-q", "--id", "ended", "--timeout", "8s", "--profile", filepath.Join(b.workspace, "watched.yaml"), "--workspace", b.workspace, "--", "sh", "-c", job)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("it did not time out: %s", out)
	}
	out, err := b.in("denials", "ended")
	for _, want := range []string{"wall-clock", "syscall", "unshare", "the container is gone"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("no %q: %v\n%s", want, err, out)
		}
	}
}

// Nothing is shown under the profile without rules.
func TestDenials_None(t *testing.T) {
	b := newBench(t)
	out, err := b.in("run", "-q", "--profile", "none", "--", "sh", "-c", `ls /dev/agentsafe; env | grep AGENTSAFE_`)
	if err == nil || !strings.Contains(out, "No such file") || strings.Contains(out, "AGENTSAFE_") {
		t.Errorf("%v\n%s", err, out)
	}
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%s: nothing for a minute", what)
		}
	}
}

// lockedBuffer is read while a program writes to it.
type lockedBuffer struct {
	mu   sync.Mutex
	data []byte
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	return len(p), nil
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data)
}
