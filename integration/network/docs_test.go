package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestDocs runs what docs/NETWORK.md tells people to run, with the profile that it shows.
func TestDocs(t *testing.T) {
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "docs/NETWORK.md"))
	if err != nil {
		t.Fatal(err)
	}
	var profile strings.Builder
	_, after, found := strings.Cut(string(data), "    # net.yaml\n")
	for line := range strings.Lines(after) {
		code, ok := strings.CutPrefix(line, "    ")
		if !ok {
			break
		}
		profile.WriteString(code)
	}
	folder := box.TempDir(t)
	if err := os.WriteFile(filepath.Join(folder, "net.yaml"), []byte(profile.String()), 0o644); err != nil || !found {
		t.Fatalf("no profile in the page: %v", err)
	}
	ran := 0
	for i, part := range strings.Split(string(data), "```") {
		block, ok := strings.CutPrefix(part, "sh\n")
		if !ok || i%2 == 0 {
			continue
		}
		for line := range strings.Lines(block) {
			r := box.Run(t, harness.Cmd{
				Args: []string{"sh", "-c", line}, Dir: folder, Env: []string{"PATH=" + filepath.Dir(ctl(t)) + ":" + os.Getenv("PATH")},
			})
			if r.Exit != 0 {
				t.Errorf("%v", r)
			}
			ran++
		}
	}
	if ran < 4 {
		t.Errorf("%d commands in the page", ran)
	}
}
