package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
)

// ctl runs agentsafectl with the test's directories.
func (b *bench) ctl(args ...string) (stdout, stderr string, status int) {
	b.t.Helper()
	cmd := exec.Command(program, append([]string{
		"--root", filepath.Join(b.dir, "state"), "--run-dir", filepath.Join(b.dir, "runs"), "--data-dir", filepath.Join(b.dir, "data"),
	}, args...)...)
	cmd.Dir = b.workspace
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		b.t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func (b *bench) file(name, text string) string {
	b.t.Helper()
	path := filepath.Join(b.workspace, name)
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		b.t.Fatal(err)
	}
	return path
}

func sh(t *testing.T, s *mcp.ClientSession, script string) call.Result {
	t.Helper()
	r, failed := invoke[call.Result](t, s, "exec_sandboxed_command", execInput{Command: script})
	if failed != "" {
		t.Fatalf("%s: %s", script, failed)
	}
	return r
}

func changed(list []call.FileChange) string {
	var out []string
	for _, c := range list {
		out = append(out, string(c.Op)+" "+filepath.Base(c.Path))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestMCP_Changes follows a session from its first change to a person's approval.
func TestMCP_Changes(t *testing.T) {
	b := newBench(t)
	notes := b.file("notes", "one\n")
	s := b.connect("--id", "session")
	first := sh(t, s, `echo two >>notes; mkdir -p .git/hooks; echo evil >.git/hooks/pre-commit; touch "$(printf 'a\033[31m\342\200\256b')"`)
	if first.Transaction != 1 || first.Status != "committed" || !strings.Contains(changed(first.FilesChanged), "modify notes") {
		t.Errorf("the first call: %+v", first)
	}
	if text, err := json.Marshal(first.FilesChanged); err != nil || !strings.Contains(string(text), `x1b[31m`) || !strings.Contains(string(text), `u202e`) {
		t.Errorf("what can't be seen in a name is not shown: %s, %v", text, err)
	}
	if data, err := os.ReadFile(notes); err != nil || string(data) != "one\n" {
		t.Fatalf("the host's file is %q, %v: a call has written to it", data, err)
	}
	if r := sh(t, s, "true"); r.Transaction == 0 || len(r.FilesChanged) != 0 {
		t.Errorf("a call without changes: %+v", r)
	}
	if w, failed := invoke[writeOutput](t, s, "write_file", writeInput{Path: "new", Content: "written\n"}); failed != "" || w.Transaction != 3 {
		t.Errorf("write_file: %+v %s", w, failed)
	}
	list, failed := invoke[listOutput](t, s, "list_changes", listInput{})
	if failed != "" || !strings.Contains(changed(list.Changes), "add new") || len(list.Transactions) != 3 {
		t.Errorf("list_changes: %+v %s", list, failed)
	}
	d, failed := invoke[diffOutput](t, s, "diff", diffInput{})
	if failed != "" || !strings.Contains(d.Diff, "+two") || !strings.Contains(d.Diff, "+written") || strings.Contains(d.Diff, "\x1b") {
		t.Errorf("diff: %q %s", d.Diff, failed)
	}
	if d, _ := invoke[diffOutput](t, s, "diff", diffInput{Transaction: 3, MaxBytes: 5}); d.Truncated == 0 || len(d.Diff) > 5 {
		t.Errorf("a short diff: %+v", d)
	}
	if u, failed := invoke[undoOutput](t, s, "undo", undoInput{}); failed != "" || u.Transaction != 3 {
		t.Errorf("undo: %+v %s", u, failed)
	}
	if r := sh(t, s, "cat new"); r.ExitCode == 0 {
		t.Errorf("what was undone is there: %+v", r)
	}
	for name, in := range map[string]promotionInput{"outside": {Paths: []string{b.workspace + "-evil/x"}}, "missing": {Paths: []string{"nowhere"}}} {
		if r, failed := invoke[promotionOutput](t, s, "request_promotion", in); failed == "" {
			t.Errorf("%s: want a refusal, not %+v", name, r)
		}
	}
	ask, failed := invoke[promotionOutput](t, s, "request_promotion", promotionInput{Message: "please\x1b[2J"})
	if failed != "" || ask.Request != 1 || !strings.Contains(changed(ask.Files), "modify notes") || len(ask.LeftOut) == 0 {
		t.Fatalf("request_promotion: %+v %s", ask, failed)
	}
	if data, err := os.ReadFile(notes); err != nil || string(data) != "one\n" {
		t.Fatalf("the host's file is %q, %v: a request has promoted", data, err)
	}
	b.approve(s, notes)
}

// approve is the person's side of a request.
func (b *bench) approve(s *mcp.ClientSession, notes string) {
	t := b.t
	t.Helper()
	out, _, _ := b.ctl("requests")
	if !strings.Contains(out, "open") || strings.Contains(out, "\x1b") {
		t.Errorf("requests:\n%s", out)
	}
	// The task changes its mind between the look and the word: that is not what was asked for.
	sh(t, s, "echo three >>notes")
	if _, stderr, status := b.ctl("promote", "--request", "1", "session"); status == 0 || !strings.Contains(stderr, "digest") {
		t.Errorf("what was not asked for is promoted: %s", stderr)
	}
	if u, failed := invoke[undoOutput](t, s, "undo", undoInput{}); failed != "" {
		t.Fatalf("undo: %+v %s", u, failed)
	}
	if out, stderr, status := b.ctl("promote", "--request", "1", "session"); status != 0 || !strings.Contains(out, "written") {
		t.Errorf("promote: %s%s", out, stderr)
	}
	if data, err := os.ReadFile(notes); err != nil || string(data) != "one\ntwo\n" {
		t.Errorf("the host's file is %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(b.workspace, ".git")); err == nil {
		t.Error("a hook was promoted without being named")
	}
	if out, _, _ := b.ctl("requests"); !strings.Contains(out, "approved") {
		t.Errorf("requests:\n%s", out)
	}
	if _, _, status := b.ctl("promote", "--request", "1", "session"); status == 0 {
		t.Error("a request is approved twice")
	}
}

// TestMCP_Direct: with the profile's own mode there is nothing to take back, and the tools say so.
func TestMCP_Direct(t *testing.T) {
	b := newBench(t)
	notes := b.file("notes", "one\n")
	s := b.connect("--workspace-mode", "profile")
	if r := sh(t, s, "echo two >>notes"); r.Transaction != 0 {
		t.Errorf("%+v", r)
	}
	if data, err := os.ReadFile(notes); err != nil || string(data) != "one\ntwo\n" {
		t.Errorf("the host's file is %q, %v", data, err)
	}
	for _, tool := range []string{"list_changes", "diff", "undo", "request_promotion"} {
		if _, failed := invoke[map[string]any](t, s, tool, map[string]any{}); !strings.Contains(failed, "workspace") {
			t.Errorf("%s: %q", tool, failed)
		}
	}
}

// TestMCP_Offered holds the list of what is offered, each with a description.
func TestMCP_Offered(t *testing.T) {
	s := newBench(t).connect()
	tools, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
		if tool.Description == "" || tool.InputSchema == nil || tool.OutputSchema == nil {
			t.Errorf("%s has no description or schema", tool.Name)
		}
	}
	slices.Sort(names)
	if got, want := strings.Join(names, " "), "diff exec_sandboxed_command list_changes read_file request_promotion undo write_file"; got != want {
		t.Errorf("tools %s, want %s", got, want)
	}
	prompts, err := s.ListPrompts(t.Context(), nil)
	if err != nil || len(prompts.Prompts) != 3 {
		t.Errorf("prompts %+v, %v", prompts, err)
	}
	for _, p := range prompts.Prompts {
		got, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: p.Name, Arguments: map[string]string{"task": "mend it"}})
		if err != nil || len(got.Messages) != 1 {
			t.Errorf("prompt %s: %+v, %v", p.Name, got, err)
		}
	}
}
