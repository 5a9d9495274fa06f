package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// child starts a program and returns it with its pidfd.
func child(t *testing.T, args ...string) (*exec.Cmd, *os.File) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	t.Cleanup(func() { pidfd.Close() })
	return cmd, pidfd
}

// TestWaitExit waits for one process in many goroutines, as timers, Close and the watch do.
func TestWaitExit(t *testing.T) {
	cmd, pidfd := child(t, "sleep", "1000")
	pid := cmd.Process.Pid
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if waitExit(ctx, pidfd, pid, 0) || waitExit(t.Context(), pidfd, pid, time.Millisecond) || gone(pidfd) {
		t.Error("a process that runs has ended")
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if !waitExit(t.Context(), pidfd, pid, 0) {
				t.Error("the end was not seen")
			}
		})
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	group.Wait()
	cmd.Wait() //nolint:errcheck // it was killed
	if !waitExit(t.Context(), pidfd, pid, 0) || !gone(pidfd) {
		t.Error("a process that was reaped is still there")
	}
}

// TestExitStatus asks the kernel for the status of a process that somebody else has reaped.
func TestExitStatus(t *testing.T) {
	for script, want := range map[string]int{"exit 7": 7, "kill -9 $$": 137, "true": 0} {
		cmd, pidfd := child(t, "sh", "-c", script)
		cmd.Wait() //nolint:errcheck // its status is what is asked for
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		if err := unix.IoctlPidfdInfo(int(pidfd.Fd()), &info); err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
			want = Unknown // before Linux 6.15
		}
		if got := exitStatus(t.Context(), pidfd); got != want {
			t.Errorf("%s: %d, want %d", script, got, want)
		}
	}
	if shellStatus(syscall.WaitStatus(9)) != 137 || shellStatus(syscall.WaitStatus(3<<8)) != 3 || StatusText(Unknown) != "unknown" || StatusText(3) != "3" {
		t.Error("a wait status is not read as shells do")
	}
}

// TestWriteNow: a line about the end must not wait for a reader, and must not be cut.
func TestWriteNow(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if !writeNow(w, []byte("hello\n"), true) {
		t.Error("an empty pipe takes nothing")
	}
	buf := make([]byte, 64)
	if n, err := r.Read(buf); err != nil || string(buf[:n]) != "hello\n" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	fd := int(w.Fd()) // every call of Fd makes it blocking
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := unix.Write(fd, make([]byte, 4096)); err != nil {
			break
		}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	for _, idle := range []bool{false, true} {
		if writeNow(w, []byte("hello\n"), idle) {
			t.Error("a full pipe has taken a line")
		}
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if !writeNow(file, []byte("x"), false) {
		t.Error("a file takes nothing")
	}
}

func TestLimitsOf(t *testing.T) {
	p := &profiles.Profile{Name: "p", Limits: profiles.Limits{WallClock: time.Minute, CPUTime: time.Second}}
	if l := LimitsOf(p); l.WallClock != time.Minute || l.CPUTime != time.Second || l.Profile != "p" {
		t.Errorf("%+v", l)
	}
	p.Unrestricted = true
	if l := LimitsOf(p); l.WallClock != 0 || l.CPUTime != 0 {
		t.Errorf("a profile without rules has limits: %+v", l)
	}
}

func TestDescribe(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "io.containerd.runtime.v2.task", "moby", "x")
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1, 0)
	d := describe("c", at, bundle, map[string]string{
		"agentsafe.dev/owner": "me", "agentsafe.dev/task": "7", "agentsafe.dev/traceparent": "00-x", "org.opencontainers.image.ref.name": "reg/i@sha256:ab",
	}, "build")
	sum := sha256.Sum256([]byte("{}"))
	want := audit.Container{
		ID: "c", Created: at, Engine: "docker", Image: "reg/i@sha256:ab", ImageDigest: "sha256:ab", SpecHash: hex.EncodeToString(sum[:]), Profile: "build",
		Owner: "me", Task: "7", TraceParent: "00-x",
	}
	if d.SpecHash != want.SpecHash || d.Owner != "me" || d.ImageDigest != want.ImageDigest || d.Engine != want.Engine || d.TraceParent != want.TraceParent || d.Task != "7" {
		t.Errorf("%+v, want %+v", d, want)
	}
	for bundle, engine := range map[string]string{
		"/run/io.containerd.runtime.v2.task/default/x": "containerd", "/var/lib/containers/storage/overlay-containers/x/userdata": "podman",
		"/run/agentsafectl/x": "agentsafectl", "/somewhere": "",
	} {
		if got := engineOf(bundle, nil); got != engine {
			t.Errorf("%s: %q, want %q", bundle, got, engine)
		}
	}
	if engineOf("/x", map[string]string{"io.kubernetes.cri.container-type": "container"}) != "kubernetes-cri" {
		t.Error("a pod's container is not told")
	}
}

// TestRecordRefusal: the log of a refusal is complete, signed, and without secrets.
func TestRecordRefusal(t *testing.T) {
	dir, keys := t.TempDir(), t.TempDir()
	public, err := audit.GenerateKey(keys)
	if err != nil {
		t.Fatal(err)
	}
	r := &wire.Refused{ID: "c", Bundle: "/nowhere", Profile: "p", Args: []string{"x", "--password=hunter2"}, What: "w", Rule: "r", Allow: "a", Caller: "dockerd"}
	if err := RecordRefusal(Options{EvidenceDir: dir, KeyDir: keys, Version: "1"})(r); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "c", "*"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("%v, %v", logs, err)
	}
	report, err := audit.Verify(logs[0])
	if err != nil || len(report.Findings) > 0 || report.Records != 2 || !report.Closed {
		t.Errorf("%+v, %v", report, err)
	}
	e, err := audit.ReadEnvelope(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	if s, err := e.Open(public); err != nil || s.Predicate.Result.Reason != audit.ReasonRefused || s.Predicate.Runtime != "1" {
		t.Errorf("%+v, %v", s, err)
	}
	text, err := os.ReadFile(filepath.Join(logs[0], "000001.jsonl"))
	if err != nil || strings.Contains(string(text), "hunter2") || !strings.Contains(string(text), `"caller":"dockerd"`) {
		t.Errorf("%s, %v", text, err)
	}
	// Without a key it is written all the same, and the error says so.
	if err := RecordRefusal(Options{EvidenceDir: t.TempDir(), KeyDir: t.TempDir()})(r); err == nil || !strings.Contains(err.Error(), "not signed") {
		t.Errorf("%v, want the reason", err)
	}
}

// TestRequested: others may add what they know more about, and nothing that the supervisor says itself.
func TestRequested(t *testing.T) {
	log, err := audit.Open(filepath.Join(t.TempDir(), "log"), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s := &Supervisor{evidence: &evidence{log: log}, o: Options{Warn: func(string) {}}}
	for kind, allowed := range map[string]bool{
		audit.TypePromotion: true, audit.TypeEgress: true, audit.TypeTransaction: true, audit.TypeDenial: true,
		audit.TypeCreate: false, audit.TypeExit: false, audit.TypeClose: false, audit.TypeRefused: false, "": false,
	} {
		if err := s.requested(&wire.Record{Type: kind, Data: []byte("{}")}); (err == nil) != allowed {
			t.Errorf("a record of type %q: %v, allowed %v", kind, err, allowed)
		}
	}
	if err := s.requested(&wire.Record{Type: audit.TypeEgress, Data: []byte("{")}); err == nil {
		t.Error("what is no JSON is written")
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 20 {
				s.requested(&wire.Record{Type: audit.TypeEgress, Data: []byte("{}")}) //nolint:errcheck // counted below
			}
		})
	}
	group.Wait()
	if seq, _ := log.Head(); seq != 4+160 {
		t.Errorf("%d records, want 164", seq)
	}
}

func TestSumLine(t *testing.T) {
	if got := sumLine("ab", "./x"); got != "ab  ./x\n" {
		t.Errorf("%q", got)
	}
	if got := sumLine("ab", "./x\ny\\"); got != "\\ab  ./x\\ny\\\\\n" {
		t.Errorf("%q", got)
	}
}

// TestDigester_Bounds: an input that never ends, or takes too long, is an error and not a wait.
func TestDigester_Bounds(t *testing.T) {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	for want, d := range map[string]*digester{
		"bytes":      {bytes: maxInputBytes - 1, deadline: time.Now().Add(time.Hour)},
		"not read":   {deadline: time.Now().Add(-time.Second)},
		"more than ": {files: maxInputFiles, deadline: time.Now().Add(time.Hour)},
	} {
		if err := d.file(sha256.New(), zero); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
