package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestCheckBranch(t *testing.T) {
	for _, ok := range []string{"main", "agentsafe/4f1c", "feature/a.b-c_d", "ümlaut", "a@b"} {
		if err := CheckBranch(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{
		"", "-x", "@", "a..b", "../x", "a/../b", "a/./b", ".a", "a/.b", "a//b", "/a", "a/", "a.", "a.lock", "a.lock/b", "a b", "a\nb", "a~1", "a^", "a:b",
		"a?", "a*", "a[b", `a\b`, "a@{1}", "a\x7f", "a\x00b", strings.Repeat("a", 256),
	} {
		if err := CheckBranch(bad); err == nil {
			t.Errorf("%q passes for the name of a branch", bad)
		}
	}
}

func TestRepositoryMount(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"one/.git", "two/.git", "plain", "file"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// A linked worktree's .git is a file, and one that leads elsewhere is nobody's.
	if err := os.WriteFile(filepath.Join(dir, "file/.git"), []byte("gitdir: /etc\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../one/.git", filepath.Join(dir, "plain/.git")); err != nil {
		t.Fatal(err)
	}
	bind := func(source, destination string, options ...string) specs.Mount {
		return specs.Mount{Source: filepath.Join(dir, source), Destination: destination, Type: "bind", Options: append(options, "rbind")}
	}
	for _, c := range []struct {
		name, cwd string
		mounts    []specs.Mount
		want      int // -1: refused
	}{
		{"the only one", "/", []specs.Mount{bind("plain", "/p"), bind("one", "/job")}, 1},
		{"where it works", "/b/sub", []specs.Mount{bind("one", "/a"), bind("two", "/b")}, 1},
		{"which", "/", []specs.Mount{bind("one", "/a"), bind("two", "/b")}, -1},
		{"read-only", "/a", []specs.Mount{bind("one", "/a", "ro")}, -1},
		{"none", "/", []specs.Mount{bind("plain", "/a"), bind("file", "/b"), {Destination: "/tmp", Type: "tmpfs"}}, -1},
	} {
		got, err := repositoryMount(&specs.Spec{Process: &specs.Process{Cwd: c.cwd}, Mounts: c.mounts})
		if (err != nil) != (c.want < 0) || err == nil && got != c.want {
			t.Errorf("%s: %d %v, want %d", c.name, got, err, c.want)
		}
	}
}

func TestAskedWorktree(t *testing.T) {
	s := &specs.Spec{Process: &specs.Process{Env: []string{"AGENTSAFE_WORKTREES=x", "AGENTSAFE_WORKTREE=topic"}}}
	if branch, source := askedWorktree(s); branch != "topic" || source != "variable AGENTSAFE_WORKTREE" {
		t.Errorf("%q %q", branch, source)
	}
	s.Annotations = map[string]string{"agentsafe.dev/worktree": "other"}
	if branch, source := askedWorktree(s); branch != "other" || source != "annotation agentsafe.dev/worktree" {
		t.Errorf("%q %q", branch, source)
	}
	if _, source := askedWorktree(&specs.Spec{}); source != "" {
		t.Errorf("nobody asks: %q", source)
	}
}
