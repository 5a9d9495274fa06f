package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestWorktrees runs tasks on one repository side by side, each in a worktree of its own, and promotes one.
func TestWorktrees(t *testing.T) {
	dir := filepath.Join(box.TempDir(t), "repo")
	git := func(args ...string) string {
		return strings.TrimSpace(box.MustRun(t, append([]string{"git", "-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@example.test", "-C", dir}, args...)...))
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	git("init", "-q", "-b", "main")
	for name, text := range map[string]string{"f": "one\n", "s": "x\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git("add", ".")
	git("commit", "-qm", "start")
	// A filter runs where somebody checks out: it must not see, or change, anything but the worktree.
	git("config", "filter.evil.smudge", "touch "+dir+"/.git/hooks/post-checkout /escaped; cat")
	if err := os.WriteFile(filepath.Join(dir, ".git/info/attributes"), []byte("f filter=evil\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	box.MustRun(t, "chown", "-R", "1000:1000", filepath.Dir(dir))
	before := listing(t, filepath.Join(dir, ".git"))
	run := func(id string, flags []string, script string) harness.Result {
		args := append([]string{control(t), "run", "--quiet", "--id", id, "--workspace", dir}, flags...)
		return box.Run(t, harness.Cmd{Args: append(args, "--", "sh", "-ec", script)})
	}
	const commit = "git -c user.name=b -c user.email=b@example.test commit -qam two"
	one := run("tree-one", []string{"--worktree=topic"}, "echo two >>f; "+commit+"; git status --short; git branch --show-current; git worktree list | wc -l; echo late >g")
	if one.Exit != 0 || one.Stdout != "topic\n2\n" {
		t.Fatalf("the first: %v", one)
	}
	two := run("tree-two", []string{"--worktree"}, "cat f; echo other >f; git branch --show-current; git branch --list | wc -l")
	if two.Exit != 0 || two.Stdout != "one\nagentsafe/tree-two\n2\n" {
		t.Fatalf("the second: %v", two)
	}
	if now := listing(t, filepath.Join(dir, ".git")); now != before {
		t.Errorf("the repository has changed:\n%s\nwas:\n%s", now, before)
	}
	if _, err := os.Stat("/escaped"); err == nil {
		t.Error("a filter has written to the host's root")
	}
	tree := dir + "-worktrees/tree-one/tree"
	if got := mustCtl(t, "promote", "tree-one"); strings.Contains(got, "written  A  "+dir+"/.git") || !strings.Contains(got, tree+"/g") {
		t.Errorf("promoted: %s", got)
	}
	mustCtl(t, "promote", "tree-one", dir+"/.git")
	if got := git("log", "--format=%s", "topic"); got != "two\nstart" {
		t.Errorf("the branch after promotion: %q", got)
	}
	if got := strings.TrimSpace(box.MustRun(t, "git", "-c", "safe.directory=*", "-C", tree, "status", "--short", "--branch")); got != "## topic\n?? g" {
		t.Errorf("the worktree after promotion: %q", got)
	}
	git("fsck", "--strict")
	mustCtl(t, "layers", "rm", "tree-one")
	mustCtl(t, "layers", "rm", "tree-two")
	if _, err := os.Stat(tree); err != nil {
		t.Errorf("what was promoted is removed: %v", err)
	}
	if err := unix.Access(dir+"-worktrees/tree-two", unix.F_OK); err == nil {
		t.Error("a worktree outlives its layers")
	}
	if r := run("tree-three", []string{"--worktree=-x"}, "true"); r.Exit == 0 || !strings.Contains(r.Stderr, "not the name of a branch") {
		t.Errorf("a branch that is an option: %v", r)
	}
	if r := run("tree-four", []string{"--worktree", "--profile", "none"}, "true"); r.Exit == 0 {
		t.Errorf("a profile without rules: %v", r)
	}
	if err := unix.Access(dir+"-worktrees/tree-four", unix.F_OK); err == nil {
		t.Error("a refused worktree is left")
	}
}
