package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// audited runs a task with evidence and returns the directory of its log.
func (b *bench) audited(id string, args ...string) string {
	b.t.Helper()
	args = append(append([]string{"-q", "--id", id, "--annotation", "agentsafe.dev/evidence=on"}, args...), "--", "sh", "-c", "sleep 0.3")
	if out, stderr, status := b.run("", args...); status != 0 {
		b.t.Fatalf("%d\n%s\n%s", status, out, stderr)
	}
	runs, err := filepath.Glob(filepath.Join(b.dir, "data", "evidence", id, "*"))
	if err != nil || len(runs) == 0 {
		b.t.Fatalf("no log of %s: %v", id, err)
	}
	return runs[len(runs)-1]
}

// TestRun_Annotations: they say who a task is for, and tighten its policy.
func TestRun_Annotations(t *testing.T) {
	b := newBench(t)
	b.audited("annotated", "--annotation", "agentsafe.dev/owner=ana=b", "--annotation", "agentsafe.dev/open-files=77",
		"--annotation", "agentsafe.dev/exec-wall-clock=7s", "--annotation", "agentsafe.dev/cpu-time=50s", "--annotation", "org.example.other=x")
	out, stderr, status := b.ctl("audit", "show", "--json", "--type", "create", "annotated")
	var r struct {
		Data struct {
			Owner  string `json:"owner"`
			Policy struct {
				Limits struct {
					OpenFiles int64 `json:"openFiles"`
					CPUTime   int64 `json:"cpuTime"`
				} `json:"limits"`
				Exec struct {
					WallClock int64 `json:"wallClock"`
				} `json:"exec"`
			} `json:"policy"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 0 {
		t.Fatalf("%v\n%s\n%s", err, out, stderr)
	}
	if d := r.Data; d.Owner != "ana=b" || d.Policy.Limits.OpenFiles != 77 || d.Policy.Limits.CPUTime != 50e9 || d.Policy.Exec.WallClock != 7e9 {
		t.Errorf("%+v", d)
	}
	for want, list := range map[string][]string{
		"want KEY=VALUE":      {"--annotation", "agentsafe.dev/owner"},
		"each key once":       {"--annotation", "a=1", "--annotation", "a=2"},
		"not a key":           {"--annotation", "agentsafe.dev/nonsense=1"},
		"nothing counts them": {"--annotation", "agentsafe.dev/egress-bytes=1MiB"},
	} {
		if _, stderr, status := b.run("", append(append([]string{"-q"}, list...), "--", "true")...); status != 125 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %s, want %q", list, status, stderr, want)
		}
	}
}

// TestAudit_Places: a log that lies where another one was is found out, and so is a statement that is gone.
func TestAudit_Places(t *testing.T) {
	b := newBench(t)
	one, two := b.audited("first-one"), b.audited("second-one")
	again := b.audited("second-one")
	verify := func(name, want string, status int) {
		t.Helper()
		out, stderr, got := b.ctl("audit", "verify", name)
		if got != status || !strings.Contains(out, want) {
			t.Errorf("%s: %d\n%s%s, want %d: %s", name, got, out, stderr, status, want)
		}
	}
	swap := func(a, b string) {
		t.Helper()
		for _, r := range [][2]string{{a, a + "x"}, {b, a}, {a + "x", b}} {
			if err := os.Rename(r[0], r[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	verify("first-one", "intact", 0)
	swap(one, two)
	verify("first-one", `it is about container "second-one" and lies in the place of "first-one"`, 1)
	swap(one, two)
	swap(two, again)
	verify("second-one", "and lies in the place of that of", 1)
	swap(two, again)
	verify("second-one", "intact", 0)
	// Copied away, a log may be called what its owner likes.
	elsewhere := filepath.Join(b.dir, "copied", "log")
	if err := os.CopyFS(elsewhere, os.DirFS(one)); err != nil {
		t.Fatal(err)
	}
	verify(elsewhere, "intact", 0)
	// A link in place of the log's file.
	file := filepath.Join(one, "000001.jsonl")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(two, "000001.jsonl"), file); err != nil {
		t.Fatal(err)
	}
	verify("first-one", "000001.jsonl:0 (byte 0, record 1): not a regular file but a symbolic link", 1)
	// A statement that was to follow.
	text, err := os.ReadFile(filepath.Join(two, "000001.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), `"unsigned"`) {
		t.Log("this host has no key: its logs say that they are not signed")
		return
	}
	if err := os.Remove(filepath.Join(again, "statement.dsse.json")); err != nil {
		t.Fatal(err)
	}
	verify("second-one", "signature  missing", 1)
}
