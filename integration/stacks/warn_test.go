package stacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestWarnBeforeEnforce configures a handler that only warns, as docs/ENGINES.md shows: what the profile refuses runs, is
// logged, and is visible wherever one looks.
func TestWarnBeforeEnforce(t *testing.T) {
	_, ours := harness.Peers(t)
	ctl := filepath.Join(filepath.Dir(ours.Path), "agentsafectl")
	blocks, err := harness.DocBlocks("ENGINES.md", "toml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("/etc/agentsafe", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/agentsafe/config.toml", []byte(blocks[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	box.MustRun(t, ctl, "config", "apply")
	t.Cleanup(func() {
		if err := os.Remove("/etc/agentsafe/config.toml"); err != nil {
			t.Error(err)
		}
		box.MustRun(t, ctl, "config", "apply")
	})
	engine.Configure(t, map[string]any{"runtimes": engine.Runtimes(map[string][]string{"agentsafe-trial": {"--profile", "trial"}})})
	asks := []string{"--cap-add", "NET_ADMIN", "--pid", "host", "-v", "/:/host:ro"}

	name := engine.Up(t, harness.Peer{Name: "agentsafe-trial"}, append(asks, small, "sleep", "1000")...)
	script := `ip link add d0 type bridge && echo linked; grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status; unshare -m true && echo unshared; ls -d /host/etc`
	r := engine.Do(t, "exec", "--privileged", name, "sh", "-c", script)
	if r.Exit != 0 { // this root may lack what --privileged asks for
		r = engine.Do(t, "exec", name, "sh", "-c", script)
	}
	for _, want := range []string{"linked", "NoNewPrivs:\t0", "Seccomp:\t2", "/host/etc"} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("nothing says %q:\n%v", want, r)
		}
	}
	log, err := os.ReadFile("/var/lib/agentsafe/warnings.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"would be refused: process.capabilities CAP_NET_ADMIN", "would be refused: linux.namespaces pid", "(/host) from /"} {
		if !strings.Contains(string(log), want) {
			t.Errorf("not in the log: %q\n%s", want, log)
		}
	}
	wantSeen(t, ctl, name)

	// Asked for by the container itself, the profile holds; and by its own name, too.
	for _, flags := range [][]string{
		{"--runtime", "agentsafe-trial", "-e", "AGENTSAFE_NETWORK=none"},
		{"--runtime", "agentsafe"},
	} {
		r := engine.Do(t, append(append([]string{"run", "--rm"}, flags...), append(asks, small, "true")...)...)
		if r.Exit == 0 || !strings.Contains(r.Stderr, "refused: ") {
			t.Errorf("want a refusal:\n%v", r)
		}
	}
}

// wantSeen looks for the mark in ps, doctor, and the state that agentsafe prints.
func wantSeen(t *testing.T, ctl, name string) {
	t.Helper()
	id := inspect(t, name, "{{.Id}}")
	root := filepath.Dir(filepath.Dir(box.MustRun(t, "find", "/run", "-path", "*/"+id+"/state.json", "-not", "-path", "*/bundle/*")))
	if r := box.Run(t, harness.Cmd{Args: []string{ctl, "ps", "--root", root}}); !strings.Contains(r.Stdout, "agent (warn only)") {
		t.Errorf("ps does not say so:\n%v", r)
	}
	if r := box.Run(t, harness.Cmd{Args: []string{ctl, "doctor"}}); !strings.Contains(r.Stdout, "NOT ENFORCED, warns only: trial") {
		t.Errorf("doctor does not say so:\n%v", r)
	}
	runtime, err := harness.RuntimePath()
	if err != nil {
		t.Fatal(err)
	}
	if r := box.Run(t, harness.Cmd{Args: []string{runtime, "--root", root, "state", id}}); !strings.Contains(r.Stdout, `"dev.agentsafe.enforcement": "warn"`) {
		t.Errorf("state does not say so:\n%v", r)
	}
}
