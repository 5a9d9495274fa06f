package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/profiles/profilefile"
)

var update = flag.Bool("update", false, "rewrite generated documents")

const (
	profilesPage  = "../../docs/PROFILES.md"
	profileSchema = "../../docs/profile.schema.json"
)

// The table of fields in the page and the published schema are what the parser knows.
func TestProfilesPage_Generated(t *testing.T) {
	var fields strings.Builder
	fields.WriteString("| field | |\n| --- | --- |\n")
	for _, f := range profilefile.Fields() {
		text := profilefile.Describe(f)
		if text == "" {
			t.Errorf("profilefile: %s has no description", f)
		}
		fmt.Fprintf(&fields, "| %s | %s |\n", f, strings.ReplaceAll(text, "|", "\\|"))
	}
	page, err := os.ReadFile(profilesPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), "-update -->\n")
	_, after, ok2 := strings.Cut(rest, "<!-- end of fields -->")
	if !ok || !ok2 {
		t.Fatal("no place for the fields in the page")
	}
	schema, err := profilefile.JSONSchema()
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		profilesPage:  before + "-update -->\n" + fields.String() + "<!-- end of fields -->" + after,
		profileSchema: string(schema),
	} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s is not up to date (%v): run the test with -update", file, err)
		}
	}
}

// TestProfilesPage_Commands runs the page from top to bottom, in a folder with the files that it shows. /etc is an
// overlay meanwhile, so that the host keeps its own configuration.
func TestProfilesPage_Commands(t *testing.T) {
	b := newBench(t)
	bin := filepath.Dir(b.wrapper())
	page, err := os.ReadFile(profilesPage)
	if err != nil {
		t.Fatal(err)
	}
	work := b.workspace
	for name, data := range map[string]string{"README": "the shop\n", ".env": "KEY=1\n"} {
		if err := os.WriteFile(filepath.Join(work, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	script := "set -e\nmount -t overlay overlay -o lowerdir=/etc,upperdir=$UPPER,workdir=$WORK /etc\nmkdir -p /etc/agentsafe\ncp config.toml /etc/agentsafe/\n" +
		"agentsafectl config apply\n"
	commands := 0
	for i, part := range strings.Split(string(page), "```") {
		if i%2 == 0 {
			continue
		}
		kind, block, _ := strings.Cut(part, "\n")
		switch kind {
		case "sh":
			commands += strings.Count(block, "\n")
			script += block
		case "yaml":
			name, _, _ := strings.Cut(strings.TrimPrefix(block, "# "), "\n")
			if err := os.WriteFile(filepath.Join(work, name), []byte(block), 0o644); err != nil {
				t.Fatal(err)
			}
		case "toml":
			if err := os.WriteFile(filepath.Join(work, "config.toml"), []byte(block), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	layer := t.TempDir()
	upper, scratch := filepath.Join(layer, "upper"), filepath.Join(layer, "work")
	for _, d := range []string{upper, scratch} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", script)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "UPPER="+upper, "WORK="+scratch)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"CI=1\nthe shop\n", "refused\n", "path /workspace/deploy/key: hidden by", "variable NPM_TOKEN: removed", "profile \"unit\" is valid", "applied\n", "connect 443: refused by network.connectPorts, ./server.yaml:6", "serves\nrefused\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the page's commands don't print %q:\n%s", want, out)
		}
	}
	if commands < 12 {
		t.Errorf("only %d commands in the page", commands)
	}
	if _, err := os.Stat(filepath.Join(work, "new")); err == nil {
		t.Error("touch was not refused")
	}
}
