package metrics

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	root := t.TempDir()
	state := `{"version":1,"ociVersion":"1.3.0","id":"c","profile":"li\"nt","policyHash":"0123","network":"none",` +
		`"created":"2026-01-02T03:04:05Z","cgroup":{"driver":"cgroupfs","paths":{}}}`
	if err := os.Mkdir(filepath.Join(root, "c"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"state.json": state, "end.json": `{"reason":"wall-clock","outputsCut":2,"layersFull":1}`} {
		if err := os.WriteFile(filepath.Join(root, "c", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := Write(&b, []string{root}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# TYPE agentsafe_container_info gauge\n", `agentsafe_container_info{id="c",engine="",profile="li\"nt",network="none",status="stopped",policy="0123"} 1` + "\n",
		`agentsafe_container_created_seconds{id="c"} 1.767323045e+09` + "\n", `agentsafe_container_ended{id="c",reason="wall-clock"} 1` + "\n",
		`agentsafe_container_outputs_cut_total{id="c"} 2` + "\n", `agentsafe_container_layers_full_total{id="c"} 1` + "\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	seen := map[string]bool{}
	for line := range strings.Lines(b.String()) {
		if strings.HasPrefix(line, "# TYPE") && seen[line] {
			t.Errorf("twice: %s", line)
		}
		seen[line] = true
	}
}
