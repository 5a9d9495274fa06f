package layers

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// overlayDiffers are the checks whose answer is another one on an overlay. docs/WORKSPACES.md names them; each is a
// property of overlayfs (overlayfs.rst, "Non-standard behavior" and "renaming directories").
var overlayDiffers = map[string]string{
	// A directory that lies below stays where it is; mv copies.
	"rename an old directory": "EXDEV; ok big,d,empty,f,g,h1,h2,l,loop,p",
	// Two names of one file below are two files for an overlay, so this is not a renaming over itself.
	"rename over a hard link": "ok; h1 ENOENT; h2 100644 links=1 size=7 0:0 old",
}

// TestPosix runs the same file operations on a direct mount, in an overlaid workspace and in a transaction, and wants the
// same answers and the same tree afterwards.
func TestPosix(t *testing.T) {
	program, err := posixcheck()
	if err != nil {
		t.Fatal(err)
	}
	d := bare(t)
	prepared := func() string {
		dir := box.TempDir(t)
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		box.MustRun(t, program, "prepare", dir)
		return dir
	}
	withProgram := func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/check", Type: "bind", Source: filepath.Dir(program), Options: []string{"rbind", "ro"}})
	}
	start := func(dir, mode string) string {
		return up(t, d, dir, func(s *specs.Spec) {
			withProgram(s)
			s.Annotations = map[string]string{"agentsafe.dev/workspace": mode}
			if mode == "transaction" {
				s.Annotations = map[string]string{"agentsafe.dev/workspace": "overlay", "agentsafe.dev/transaction": "auto"}
			}
		})
	}
	answers, trees := map[string][]string{}, map[string]string{}
	for _, mode := range []string{"direct", "overlay", "transaction"} {
		dir := prepared()
		var id string
		if mode == "direct" {
			id = d.Up(t, func(s *specs.Spec) {
				overlaid(dir)(s)
				withProgram(s)
				s.Annotations = nil
			}).ID
			t.Cleanup(func() { d.Do(t, "delete", "--force", id) })
		} else {
			id = start(dir, mode)
		}
		out := d.Must(t, "exec", id, "/check/posixcheck", "run", "/job")
		answers[mode] = strings.Split(out, "\n")
		trees[mode] = listing(t, "/proc/"+strconv.Itoa(d.State(t, id).Pid)+"/root/job")
	}
	for _, mode := range []string{"overlay", "transaction"} {
		if len(answers[mode]) != len(answers["direct"]) {
			t.Fatalf("%s: %d answers, and %d on a direct mount", mode, len(answers[mode]), len(answers["direct"]))
		}
		for i, want := range answers["direct"] {
			name, _, _ := strings.Cut(want, ": ")
			if differs, ok := overlayDiffers[name]; ok {
				want = name + ": " + differs
			}
			if got := answers[mode][i]; got != want {
				t.Errorf("%s\n got  %s\n want %s", mode, got, want)
			}
		}
		compareListings(t, mode, trees[mode], trees["direct"])
	}
}

// compareListings wants the same trees but for the checks whose answers differ.
func compareListings(t *testing.T, mode, got, want string) {
	t.Helper()
	lines := func(s string) map[string]bool {
		out := map[string]bool{}
		for l := range strings.SplitSeq(s, "\n") {
			dir, _, _ := strings.Cut(l, "/")
			dir, _, _ = strings.Cut(dir, " ")
			if _, ok := overlayDiffers[strings.ReplaceAll(dir, "-", " ")]; !ok {
				out[l] = true
			}
		}
		return out
	}
	g, w := lines(got), lines(want)
	for l := range w {
		if !g[l] {
			t.Errorf("%s: the tree lacks %q", mode, l)
		}
	}
	for l := range g {
		if !w[l] {
			t.Errorf("%s: the tree has %q", mode, l)
		}
	}
}
