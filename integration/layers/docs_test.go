package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestDocs runs every command block of the page, in their order, in one shell.
func TestDocs(t *testing.T) {
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "WORKSPACES.md"))
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	script.WriteString("set -ex\n")
	blocks := 0
	for _, part := range strings.Split(string(page), "```sh\n")[1:] {
		block, _, ok := strings.Cut(part, "```")
		if !ok {
			t.Fatal("a block without an end")
		}
		script.WriteString(block)
		blocks++
	}
	if blocks < 5 {
		t.Fatalf("the page has %d command blocks", blocks)
	}
	dir := box.TempDir(t)
	// The page says docker; the box's engine is on a socket of its own.
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	wrapper := "#!/bin/sh\nexec " + strings.Join(docker.Args(), " ") + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	keepConfig(t)
	t.Cleanup(func() { docker.Do(t, "rm", "--force", "agent", "tree") })
	r := box.Run(t, harness.Cmd{
		Args: []string{"bash", "-c", script.String()}, Dir: dir,
		Env: []string{"PATH=" + bin + ":" + filepath.Dir(control(t)) + ":" + os.Getenv("PATH")},
	})
	if r.Exit != 0 {
		t.Fatal(r)
	}
	for _, want := range []string{"one\n", "+two", "modify file", "left", "git runs hooks", "checked", "restored as transaction", "look at main.c", "ref: refs/heads/fix"} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("the page's commands do not print %q:\n%s", want, r.Stdout)
		}
	}
}
