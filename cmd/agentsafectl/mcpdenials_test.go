package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
)

const guardedProfile = `apiVersion: agentsafe.dev/v1
kind: Profile
metadata: {name: guarded}
extends: agent
network: {mode: gateway, allow: ["allowed.example.com:443"]}
evidence: {mode: "on", denials: kernel}
`

// TestMCP_Denials: a result has what the command was refused, by the gateway and by the kernel, each time and not only
// the first; with the rule, and what would allow it.
func TestMCP_Denials(t *testing.T) {
	canListen(t)
	b := newBench(t)
	profile := filepath.Join(b.dir, "guarded.yaml")
	if err := os.WriteFile(profile, []byte(guardedProfile), 0o644); err != nil {
		t.Fatal(err)
	}
	s := b.connect("--profile", profile, "--annotation", "agentsafe.dev/task=look around", "--id", "guarded-session")
	// What the kernel reports late is in the next result.
	refused := func(script, kind, what string) call.Denial {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; {
			r := sh(t, s, script)
			for _, d := range r.Denials {
				if d.Kind == kind && d.What == what {
					return d
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: no denial %s %s in %+v", script, kind, what, r)
			}
		}
	}
	for range 3 {
		if d := refused("getent hosts refused.example.org; true", "network", "refused.example.org"); d.Rule != "network.allow" || !strings.Contains(d.Allow, "refused.example.org:443") || d.Count < 1 {
			t.Errorf("network: %+v", d)
		}
		if d := refused("unshare -n true 2>/dev/null; true", "syscall", "unshare"); d.Rule == "" || !strings.Contains(d.Allow, "syscalls") {
			t.Errorf("syscall: %+v", d)
		}
	}
	// A command that is refused nothing says so, once what came late has been told.
	for deadline := time.Now().Add(30 * time.Second); len(sh(t, s, "true").Denials) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("true is refused something")
		}
	}
	// Side by side each is told of its own, as far as the kernel is quick enough to say whose they are.
	syscalls := func(list []call.Denial) (n int) {
		for _, d := range list {
			if d.Kind == "syscall" {
				n += d.Count
			}
		}
		return n
	}
	for deadline := time.Now().Add(60 * time.Second); ; {
		quiet := make(chan *mcp.CallToolResult, 1)
		go func() {
			r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "exec_sandboxed_command", Arguments: execInput{Command: "sleep 1"}})
			if err != nil || r.IsError {
				t.Errorf("%+v, %v", r, err)
				r = &mcp.CallToolResult{}
			}
			quiet <- r
		}()
		loud := sh(t, s, "for i in 1 2 3; do unshare -n true 2>/dev/null; done; sleep 1")
		var beside call.Result
		if err := decode(<-quiet, &beside); err != nil {
			t.Fatal(err)
		}
		if syscalls(loud.Denials) > 0 && syscalls(beside.Denials) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("refused to one: %+v; the other one is told: %+v", loud.Denials, beside.Denials)
		}
	}
	list, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "agentsafe://session/denials"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"refused: network: refused.example.org: ", "refused: syscall: unshare: ", "[network.allow]", "cut: "} {
		if !strings.Contains(list.Contents[0].Text, want) {
			t.Errorf("the resource lacks %q:\n%s", want, list.Contents[0].Text)
		}
	}
	// The same for a harness without MCP, by another process.
	for deadline := time.Now().Add(30 * time.Second); ; {
		r, _ := b.execJSON("guarded-session", "--", "sh", "-c", "getent hosts other.example.org; unshare -n true; true")
		kinds := ""
		for _, d := range r.Denials {
			kinds += d.Kind + " " + d.What + "; "
		}
		if strings.Contains(kinds, "network other.example.org") && strings.Contains(kinds, "syscall unshare") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("exec --json: %s of %+v", kinds, r)
		}
	}
}
