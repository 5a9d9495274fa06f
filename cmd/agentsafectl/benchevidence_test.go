package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
)

// TestBenchEvidence prints what a tool call costs: with the workspace direct, with evidence, and with a transaction; by
// turns, so that the machine's load hits all alike. Targets on a quiet machine: 12 ms for a call, 0.3 ms for evidence.
func TestBenchEvidence(t *testing.T) {
	if os.Getenv("AGENTSAFE_BENCH_EVIDENCE") == "" {
		t.Skip("probe AGENTSAFE_BENCH_EVIDENCE: not set (make bench-evidence sets it)")
	}
	b := newBench(t)
	evidence := filepath.Join(b.dir, "evidence.yaml")
	text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: recorded}\nextends: agent\nevidence: {mode: \"on\"}\n"
	if err := os.WriteFile(evidence, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	wrapper := b.wrapper()
	sessions := []struct {
		name  string
		s     *mcp.ClientSession
		times []time.Duration
	}{
		{name: "direct", s: b.connectBy(wrapper, "--workspace-mode", "profile")},
		{name: "evidence", s: b.connectBy(wrapper, "--workspace-mode", "profile", "--profile", evidence)},
		{name: "transaction", s: b.connectBy(wrapper)},
	}
	const rounds = 150
	for range rounds {
		for i := range sessions {
			began := time.Now()
			if _, failed := invoke[call.Result](t, sessions[i].s, "exec_sandboxed_command", execInput{Command: "/bin/true", Args: []string{}}); failed != "" {
				t.Fatal(failed)
			}
			sessions[i].times = append(sessions[i].times, time.Since(began))
		}
	}
	for i := range sessions {
		slices.Sort(sessions[i].times)
		s := &sessions[i]
		t.Logf("true through MCP, %-12s median %v, least %v", s.name+":", s.times[rounds/2], s.times[0])
	}
	t.Logf("evidence adds %v in the median, %v at the least", sessions[1].times[rounds/2]-sessions[0].times[rounds/2], sessions[1].times[0]-sessions[0].times[0])
}
