package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// inspectorVersion is the release of the protocol's own inspector that is tested with.
const inspectorVersion = "2.12.0"

// inspector installs the inspector's command line with npm, once a machine, and returns its program.
func inspector(t *testing.T) string {
	t.Helper()
	if os.Getenv("AGENTSAFE_TEST_LONG") == "" {
		t.Skip("probe AGENTSAFE_TEST_LONG: not set")
	}
	return filepath.Join(npmTools(t, "@modelcontextprotocol/inspector@"+inspectorVersion), "node_modules", ".bin", "mcp-inspector")
}

// TestMCP_Inspector has a client that is not the Go SDK's list and call the tools: the inspector's command line.
func TestMCP_Inspector(t *testing.T) {
	program := inspector(t)
	b := newBench(t)
	wrapper := b.wrapper()
	ask := func(args ...string) (string, error) {
		t.Helper()
		cmd := exec.Command(program, append([]string{"--cli", wrapper, "mcp"}, args...)...)
		cmd.Dir = b.workspace
		cmd.Env = append(os.Environ(), "HOME="+b.dir)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := ask("--method", "tools/list")
	if err != nil || strings.Count(out, `"inputSchema"`) != 7 || !strings.Contains(out, "exec_sandboxed_command") {
		t.Errorf("tools/list: %v\n%s", err, out)
	}
	out, err = ask("--method", "tools/call", "--tool-name", "exec_sandboxed_command", "--tool-arg", "command=echo out; echo err >&2; exit 3")
	var r struct {
		IsError           bool `json:"isError"`
		StructuredContent struct {
			Stdout   string `json:"stdout"`
			Stderr   string `json:"stderr"`
			ExitCode int    `json:"exit_code"`
		} `json:"structuredContent"`
	}
	if err != nil || json.Unmarshal([]byte(out), &r) != nil || r.IsError || r.StructuredContent.Stdout != "out\n" || r.StructuredContent.Stderr != "err\n" || r.StructuredContent.ExitCode != 3 {
		t.Errorf("tools/call: %v\n%s", err, out)
	}
	// A failure of the tool, and one of the protocol.
	if out, _ := ask("--method", "tools/call", "--tool-name", "read_file", "--tool-arg", "path=/etc/passwd"); !strings.Contains(out, `"isError": true`) {
		t.Errorf("a path outside of the workspace:\n%s", out)
	}
	if out, err := ask("--method", "tools/call", "--tool-name", "no_such_tool"); err == nil {
		t.Errorf("an unknown tool:\n%s", out)
	}
	for _, method := range []string{"resources/list", "prompts/list"} {
		if out, err := ask("--method", method); err != nil || !strings.Contains(out, `"name"`) {
			t.Errorf("%s: %v\n%s", method, err, out)
		}
	}
}
