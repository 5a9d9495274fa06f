package cri

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// bindData puts directories of agentsafe's data onto the machine's own file system: in the box /var/lib is an overlay, which
// can't hold another one's upper directory.
func bindData(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		dir := "/var/lib/agentsafe/" + name
		if err := errors.Join(os.MkdirAll(dir, 0o700), unix.Mount(box.TempDir(t), dir, "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWorktree gives a pod's container a worktree by its annotation, in the place of the repository that the kubelet would
// mount: the repository does not change, and what the task wrote can be promoted when the pod is gone.
func TestWorktree(t *testing.T) {
	bindData(t, "layers", "runs") // the latter is of the container that checks the branch out
	dir := filepath.Join(box.TempDir(t), "repo")
	git := func(args ...string) string {
		return strings.TrimSpace(box.MustRun(t, append([]string{"git", "-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@example.test", "-C", dir}, args...)...))
	}
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "f"), []byte("one\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	git("init", "-q", "-b", "main")
	git("add", ".")
	git("commit", "-qm", "start")

	p := runPod(t, handler, nil)
	id := p.run(t, imageBusybox, object{
		"annotations": object{"agentsafe.dev/worktree": "topic"}, "working_dir": "/job",
		"mounts": []object{{"container_path": "/job", "host_path": dir}},
	}, "sleep", "1000")
	script := `cat f "$(sed 's/gitdir: //' .git)/HEAD"; echo two >f; echo late >new`
	if r := engine.do(t, "exec", "--sync", id, "sh", "-ec", script); r.Exit != 0 || strings.TrimSpace(r.Stdout) != "one\nref: refs/heads/topic" {
		t.Errorf("in the worktree: %v", r)
	}
	if branches, status := git("branch", "--list"), git("status", "--short"); branches != "* main" || status != "" {
		t.Errorf("the repository has changed: %q %q", branches, status)
	}
	p.remove(t)
	ctl := filepath.Join(filepath.Dir(shimPath()), "agentsafectl")
	box.MustRun(t, ctl, "promote", id, dir+"/.git")
	box.MustRun(t, ctl, "promote", id)
	if got := git("-C", dir+"-worktrees/"+id[:12]+"/tree", "status", "--short", "--branch"); got != "## topic\n M f\n?? new" {
		t.Errorf("the worktree after promotion: %q", got)
	}
	box.MustRun(t, ctl, "layers", "rm", id)
}
