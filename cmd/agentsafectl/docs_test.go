package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// docCommands returns the lines of a page's sh blocks.
func docCommands(t *testing.T, page string) []string {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i, part := range strings.Split(string(data), "```") {
		if block, ok := strings.CutPrefix(part, "sh\n"); ok && i%2 == 1 {
			out = append(out, strings.Split(strings.TrimSpace(block), "\n")...)
		}
	}
	return out
}

const evidenceProfile = `apiVersion: agentsafe.dev/v1
kind: Profile
metadata: {name: evidence}
extends: agent
limits: {wallClock: 1m}
evidence: {mode: "on"}
`

// TestDocs_Evidence runs the commands of docs/EVIDENCE.md one after the other, with a key of the test's own.
func TestDocs_Evidence(t *testing.T) {
	b := newBench(t)
	bin := filepath.Dir(b.wrapper())
	if err := os.WriteFile(filepath.Join(b.workspace, "evidence.yaml"), []byte(evidenceProfile), 0o644); err != nil {
		t.Fatal(err)
	}
	commands := docCommands(t, "../../docs/EVIDENCE.md")
	for _, line := range commands {
		// In a mount namespace of its own, /etc/agentsafe is the test's.
		script := `mkdir -p /etc/agentsafe && mount --bind "$KEYS" /etc/agentsafe && ` + line
		cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", script)
		cmd.Dir = b.workspace
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KEYS="+b.dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
		if strings.Contains(line, "verify") && (!strings.Contains(string(out), "intact") || !strings.Contains(string(out), "signature  good")) {
			t.Errorf("%s:\n%s", line, out)
		}
	}
	if len(commands) < 5 {
		t.Errorf("only %d commands", len(commands))
	}
}

// TestDocs_MCP runs the commands of docs/MCP.md.
func TestDocs_MCP(t *testing.T) {
	b := newBench(t)
	bin := filepath.Dir(b.wrapper())
	for _, line := range docCommands(t, "../../docs/MCP.md") {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir, cmd.Env = b.workspace, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
}
