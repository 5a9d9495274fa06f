package limits

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

const evidenceDir = "/var/lib/agentsafe/evidence"

// audit runs agentsafectl audit with a key.
func audit(t *testing.T, args ...string) harness.Result {
	t.Helper()
	return box.Run(t, harness.Cmd{Args: append([]string{program("agentsafectl"), "audit"}, args...)})
}

// types lists the types of a log's records.
func types(t *testing.T, id string) string {
	t.Helper()
	r := audit(t, "show", "--json", id)
	if r.Exit != 0 {
		t.Fatalf("show:\n%v", r)
	}
	var out []string
	for line := range strings.Lines(r.Stdout) {
		var record struct{ Type string }
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		out = append(out, record.Type)
	}
	return strings.Join(out, " ")
}

func keygen(t *testing.T) {
	t.Helper()
	if r := audit(t, "keygen"); r.Exit != 0 {
		t.Fatalf("keygen:\n%v", r)
	}
}

// TestEvidence_Docker follows a container of Docker's with an exec, whose secret must not be in the log, to a signed
// statement, and then changes the log.
func TestEvidence_Docker(t *testing.T) {
	keygen(t)
	reloaded.Do(func() { reloadDocker(t) })
	name := box.ID()
	docker.Must(t, "run", "--detach", "--network", "none", "--runtime", "ev", "--name", name, "--env", "MY_SETTING=hunter2", image, "sleep", "100")
	id := docker.Must(t, "inspect", "--format", "{{.Id}}", name)
	if r := docker.Do(t, "exec", name, "sh", "-c", "echo --password=hunter3; exit 4"); r.Exit != 4 {
		t.Errorf("exec: want 4:\n%v", r)
	}
	docker.Must(t, "rm", "--force", name)
	if got, want := types(t, id), "create start exec exec-exit exit close"; got != want {
		t.Errorf("records %s, want %s", got, want)
	}
	text := audit(t, "export", "--log", id).Stdout
	for _, want := range []string{`"engine":"docker"`, `MY_SETTING`, `"status":4`, `"status":137`, `"usage":{"everyMillis":`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in the log:\n%s", want, text)
		}
	}
	if strings.Contains(text, "hunter") {
		t.Errorf("a secret is in the log:\n%s", text)
	}
	r := audit(t, "verify", id)
	if r.Exit != 0 || !strings.Contains(r.Stdout, "intact") || !strings.Contains(r.Stdout, "signature  good") {
		t.Errorf("verify an intact log:\n%v", r)
	}
	wantSchema(t, id)
	tamper(t, id)
}

// wantSchema holds a statement against the published schema.
func wantSchema(t *testing.T, id string) {
	t.Helper()
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "evidence.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var envelope struct{ Payload []byte }
	if err := json.Unmarshal([]byte(audit(t, "export", id).Stdout), &envelope); err != nil {
		t.Fatal(err)
	}
	var statement struct{ Predicate any }
	if err := json.Unmarshal(envelope.Payload, &statement); err != nil {
		t.Fatal(err)
	}
	r, err := schema.Resolve(nil)
	if err == nil {
		err = r.Validate(statement.Predicate)
	}
	if err != nil {
		t.Errorf("the statement is not what the schema says: %v\n%s", err, envelope.Payload)
	}
}

// TestEvidence_Key: without a key that can be trusted nothing is signed, the log says why, and the container runs.
func TestEvidence_Key(t *testing.T) {
	keygen(t)
	const key = "/etc/agentsafe/evidence/key"
	good, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	restore := func() error {
		os.Remove(key)
		return os.WriteFile(key, good, 0o600)
	}
	defer restore() //nolint:errcheck // the box ends, too
	d := box.Bare(t, harness.Peer{Name: "ev", Path: wrapper("ev")})
	for name, c := range map[string]struct {
		spoil func() error
		want  string
	}{
		"missing":  {func() error { return os.Remove(key) }, "no such file"},
		"readable": {func() error { return os.Chmod(key, 0o644) }, "chmod 600"},
		"damaged":  {func() error { return os.WriteFile(key, good[:30], 0o600) }, "not 32 bytes"},
		"a link":   {func() error { return errors.Join(os.Remove(key), os.Symlink("/dev/null", key)) }, "too many levels"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := errors.Join(restore(), c.spoil()); err != nil {
				t.Fatal(err)
			}
			bundle := box.Bundle(t, harness.Sh("exit 4"))
			if r := d.Do(t, "run", "--bundle", bundle.Dir, bundle.ID); r.Exit != 4 {
				t.Errorf("want 4:\n%v", r)
			}
			if got := audit(t, "show", "--type", "close", bundle.ID).Stdout; !strings.Contains(got, "unsigned") || !strings.Contains(got, c.want) {
				t.Errorf("the log does not tell why it is not signed: %s", got)
			}
			if v := audit(t, "verify", bundle.ID); v.Exit != 0 || !strings.Contains(v.Stdout, "signature  none") {
				t.Errorf("verify:\n%v", v)
			}
		})
	}
}

// tamper changes the exit status in the newest log of id, away from the host: a copy of the files and the public key
// are all that verifying needs.
func tamper(t *testing.T, id string) {
	t.Helper()
	copied := box.TempDir(t)
	runs, err := filepath.Glob(filepath.Join(evidenceDir, id, "*", "*"))
	if err != nil || len(runs) == 0 {
		t.Fatalf("no files of the log: %v", err)
	}
	for _, file := range append(runs, "/etc/agentsafe/evidence/key.pub") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		data = bytes.Replace(data, []byte(`"status":4`), []byte(`"status":0`), 1)
		if err := os.WriteFile(filepath.Join(copied, filepath.Base(file)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := audit(t, "verify", "--key", filepath.Join(copied, "key.pub"), copied)
	if r.Exit != 1 || !strings.Contains(r.Stdout, "CHANGED") || !strings.Contains(r.Stdout, "000001.jsonl:5") || !strings.Contains(r.Stdout, "record 4") {
		t.Errorf("a changed record 4 is not located:\n%v", r)
	}
}

func TestEvidence_OurShim(t *testing.T) {
	keygen(t)
	id := box.ID()
	r := containerd.Do(t, "run", "--rm", "--runtime", shimPath("ev"), "docker.io/library/"+image, id, "sh", "-c", "exit 6")
	if r.Exit != 6 {
		t.Errorf("want 6:\n%v", r)
	}
	if got, want := types(t, id), "create start exit close"; got != want {
		t.Errorf("records %s, want %s", got, want)
	}
	if v := audit(t, "verify", id); v.Exit != 0 || !strings.Contains(v.Stdout, "signature  good") {
		t.Errorf("verify:\n%v", v)
	}
}

// TestEvidence_SupervisorKilled: a monitor that is killed leaves a log that can be read, and that is not finished.
func TestEvidence_SupervisorKilled(t *testing.T) {
	d := box.Bare(t, harness.Peer{Name: "ev", Path: wrapper("ev")})
	bundle := d.Up(t, nil)
	var s struct{ SupervisorPid int }
	data, err := os.ReadFile(d.Root + "/" + bundle.ID + "/state.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &s); err != nil || s.SupervisorPid == 0 {
		t.Fatalf("no supervisor: %v", err)
	}
	if err := unix.Kill(s.SupervisorPid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.Must(t, "delete", "--force", bundle.ID)
	r := audit(t, "verify", bundle.ID)
	if r.Exit != 0 || !strings.Contains(r.Stdout, "did not finish") || !strings.Contains(r.Stdout, "signature  none") {
		t.Errorf("verify:\n%v", r)
	}
}

// TestEvidence_FullDisk fills the file system of the logs under a container that runs.
func TestEvidence_FullDisk(t *testing.T) {
	for _, c := range []struct{ profile, want string }{{"ev", "stop"}, {"gaps", "gap"}} {
		t.Run(c.want, func(t *testing.T) {
			if err := os.MkdirAll(evidenceDir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", evidenceDir, "tmpfs", 0, "size=64k"); err != nil {
				t.Fatal(err)
			}
			defer unix.Unmount(evidenceDir, unix.MNT_DETACH)
			d := box.Bare(t, harness.Peer{Name: c.profile, Path: wrapper(c.profile)})
			bundle := d.Up(t, nil)
			ballast := filepath.Join(evidenceDir, "ballast")
			if out, err := exec.Command("dd", "if=/dev/zero", "of="+ballast, "bs=1k").CombinedOutput(); err == nil {
				t.Fatalf("the file system is not full: %s", out)
			}
			// What is left of the log's last block may take some records.
			var r harness.Result
			for range 40 {
				if r = d.Do(t, "exec", bundle.ID, "true"); r.Exit != 0 {
					break
				}
			}
			if c.want == "gap" {
				if r.Exit != 0 {
					t.Fatalf("the profile goes on with a gap:\n%v", r)
				}
				if err := os.Remove(ballast); err != nil {
					t.Fatal(err)
				}
				d.Must(t, "exec", bundle.ID, "true")
				d.Must(t, "delete", "--force", bundle.ID)
				if got := types(t, bundle.ID); !strings.Contains(got, " gap ") || !strings.HasSuffix(got, "exit close") {
					t.Errorf("records %s: want a gap, and an end", got)
				}
				if v := audit(t, "verify", bundle.ID); v.Exit != 0 || !strings.Contains(v.Stdout, "gaps       1") {
					t.Errorf("verify:\n%v", v)
				}
				return
			}
			if r.Exit == 0 || !strings.Contains(r.Stderr, "evidence") {
				t.Errorf("the profile stops, but an exec goes on:\n%v", r)
			}
			d.WaitStatus(t, bundle.ID, "stopped")
			if s := d.Must(t, "state", bundle.ID); !strings.Contains(s, `"reason": "evidence"`) {
				t.Errorf("state does not tell why:\n%s", s)
			}
			d.Must(t, "delete", bundle.ID)
		})
	}
}
