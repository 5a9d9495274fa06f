package rootless

import (
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestDocs runs the commands of docs/ROOTLESS.md as an ordinary user.
func TestDocs(t *testing.T) {
	bundle := rick.bundle(t, func(s *specs.Spec) { s.Process.Args = []string{"true"} })
	blocks, err := harness.DocBlocks("ROOTLESS.md", "sh")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for line := range strings.Lines(strings.Join(blocks, "")) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "podman "):
			// TestPodman has it.
			continue
		case strings.HasPrefix(line, "agentsafe spec"):
			line = "cd " + rick.folder(t) + " && " + line
		case strings.HasPrefix(line, "agentsafe "):
			line = "cd " + bundle + " && " + strings.Replace(line, " ID", " "+box.ID(), 1)
		}
		r := rick.do(t, "sh", "-c", line)
		ran++
		// doctor's status tells whether this machine can enforce the profile, and the test machine is the one that it is.
		if r.Exit != 0 && (!strings.HasSuffix(line, "doctor") || r.Exit != 1) {
			t.Error(r)
		}
		if strings.HasSuffix(line, "doctor") && !strings.Contains(r.Stdout, "without root") {
			t.Error(r)
		}
		if slices.Contains(strings.Fields(line), "diff") && !strings.Contains(r.Stdout, "notes.txt") {
			t.Error(r)
		}
	}
	if ran < 8 {
		t.Errorf("only %d commands", ran)
	}
}
