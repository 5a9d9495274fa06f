package layers

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
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
	git("config", "filter.evil.smudge", "touch "+dir+"/.git/hooks/post-checkout "+dir+"-escaped; cat")
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
	if _, err := os.Stat(dir + "-escaped"); err == nil {
		t.Error("a filter has written outside of its container")
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

// plainRepository makes a repository of another owner's with two commits' worth of files, and a filter that runs where
// somebody checks out.
func plainRepository(t *testing.T) (dir string, git func(args ...string) string) {
	t.Helper()
	dir = filepath.Join(box.TempDir(t), "repo")
	git = func(args ...string) string {
		return strings.TrimSpace(box.MustRun(t, append([]string{"git", "-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@example.test", "-C", dir}, args...)...))
	}
	if err := os.MkdirAll(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	git("init", "-q", "-b", "main")
	for name, text := range map[string]string{"f": "one\n", "d/g": "x\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git("add", ".")
	git("commit", "-qm", "start")
	git("branch", "taken")
	git("config", "filter.evil.smudge", "touch "+dir+"/.git/hooks/post-checkout "+dir+"-escaped; cat")
	if err := os.WriteFile(filepath.Join(dir, ".git/info/attributes"), []byte("f filter=evil\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir, git
}

// keepConfig removes the host's configuration that a test makes.
func keepConfig(t *testing.T) {
	t.Cleanup(func() {
		if err := os.RemoveAll("/etc/agentsafe"); err != nil {
			t.Error(err)
		}
	})
}

// TestWorktreeUnderEngines has engines' containers ask for a worktree in the place of the repository that they are given,
// two of them side by side, of an image without git.
func TestWorktreeUnderEngines(t *testing.T) {
	_, agentsafe := harness.Peers(t)
	shim := filepath.Join(filepath.Dir(agentsafe.Path), "containerd-shim-agentsafe-v2")
	keepConfig(t)
	podman := &harness.Podman{Box: box}
	if busybox, err := harness.Busybox(); err != nil {
		t.Fatal(err)
	} else if err := podman.Load(busybox.Archive); err != nil {
		t.Fatal(err)
	}
	for _, engine := range []string{"docker", "containerd", "podman"} {
		t.Run(engine, func(t *testing.T) {
			dir, git := plainRepository(t)
			before := listing(t, dir)
			start := func(branch string) liveSession {
				wish := []string{"AGENTSAFE_WORKTREE=" + branch, "AGENTSAFE_TRANSACTION=auto"}
				if engine == "docker" {
					name := docker.Up(t, agentsafe, "-v", dir+":/job", "-w", "/job", "-e", wish[0], "-e", wish[1], image, "sleep", "1000")
					return liveSession{
						docker.Must(t, "inspect", "--format", "{{.Id}}", name),
						func(script string) harness.Result { return docker.Do(t, "exec", name, "sh", "-ec", script) },
						func() { docker.Must(t, "rm", "--force", name) },
					}
				}
				if engine == "podman" {
					id := podman.Must(t, agentsafe, "run", "--detach", "--network", "none", "--cgroup-parent", box.CgroupParent(), "--volume", dir+":/job", "--workdir", "/job",
						"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--annotation", "agentsafe.dev/worktree="+branch, "--env", wish[1], image, "sleep", "1000")
					removed := false
					remove := func() {
						if !removed {
							removed = true
							podman.Must(t, agentsafe, "rm", "--force", "--time", "0", id)
						}
					}
					t.Cleanup(remove)
					return liveSession{id, func(script string) harness.Result { return podman.Do(t, agentsafe, "exec", id, "sh", "-ec", script) }, remove}
				}
				id := box.ID()
				box.MustRun(t, containerd.Args("run", "--runtime", shim, "--detach", "--cwd", "/job", "--mount", "type=bind,src="+dir+",dst=/job,options=rbind:rw",
					"--annotation", "agentsafe.dev/worktree="+branch, "--env", wish[1], harness.BusyboxName, id, "sleep", "1000")...)
				n := 0
				remove := removeTask(t, id)
				t.Cleanup(remove)
				return liveSession{id, func(script string) harness.Result {
					n++
					return containerd.Do(t, "tasks", "exec", "--exec-id", fmt.Sprintf("w%d", n), "--cwd", "/job", id, "sh", "-ec", script)
				}, remove}
			}
			if engine == "docker" {
				if r := docker.Do(t, "run", "--rm", "--runtime", agentsafe.Name, "-v", dir+":/job", "-w", "/job", "-e", "AGENTSAFE_WORKTREE=auto", image, "test", "-d", ".git"); r.Exit != 0 {
					t.Errorf("a variable that may come from an image made a worktree: %v", r)
				}
				box.MustRun(t, "sh", "-c", "mkdir -p /etc/agentsafe && echo 'worktreeVariable = true' >/etc/agentsafe/config.toml && "+control(t)+" config apply")
			}
			one, two := start("topic"), start("auto")
			const look = `cat f d/g; cat "$(sed 's/gitdir: //' .git)/HEAD"; `
			if r := one.run(look + "echo late >new"); r.Exit != 0 || r.Stdout != "one\nx\nref: refs/heads/topic\n" {
				t.Errorf("the first: %v", r)
			}
			name := two.id
			if engine != "containerd" {
				name = name[:12]
			}
			if r := two.run(look + "ls"); r.Exit != 0 || r.Stdout != "one\nx\nref: refs/heads/agentsafe/"+name+"\nd\nf\n" {
				t.Errorf("the second: %v", r)
			}
			if h := history(t, one.id); len(h) != 1 || h[0].Status != "committed" || h[0].Changes != 1 {
				t.Errorf("log: %+v", h)
			}
			if now := listing(t, dir); now != before {
				t.Errorf("the repository has changed:\n%s\nwas:\n%s", now, before)
			}
			one.remove()
			two.remove()
			mustCtl(t, "promote", one.id, dir+"/.git")
			mustCtl(t, "promote", one.id, "/job/new")
			if engine != "containerd" {
				name = one.id[:12]
			} else {
				name = one.id
			}
			if got := git("-C", dir+"-worktrees/"+name+"/tree", "status", "--short", "--branch"); got != "## topic\n?? new" {
				t.Errorf("the worktree after promotion: %q", got)
			}
			git("fsck", "--strict")
			mustCtl(t, "layers", "rm", one.id)
			mustCtl(t, "layers", "rm", two.id)
			if left, err := os.ReadDir(dir + "-worktrees"); err != nil || len(left) != 1 {
				t.Errorf("worktrees that are left: %v %v", left, err)
			}
			if _, err := os.Stat(dir + "-escaped"); err == nil {
				t.Error("a filter has written outside of its container")
			}
		})
	}
}

// TestRefusedWorktrees leaves nothing on the host.
func TestRefusedWorktrees(t *testing.T) {
	dir, git := plainRepository(t)
	git("worktree", "add", "-q", dir+"-beside", "-b", "busy")
	// Its branches are in files that the runtime does not write. Git before 2.45 knows of no such thing: it is said so by
	// hand.
	other := filepath.Join(filepath.Dir(dir), "tables")
	box.MustRun(t, "cp", "-r", dir, other)
	git("-C", other, "config", "core.repositoryformatversion", "1")
	git("-C", other, "config", "extensions.refstorage", "reftable")
	before := listing(t, filepath.Dir(dir))
	for _, c := range []struct {
		name, source, branch, want string
		annotations                map[string]string
	}{
		{"branches in tables", other, "auto", "keeps its branches as reftable", nil},
		{"no repository", filepath.Join(dir, "d"), "auto", "0 writable bind mounts are repositories", nil},
		{"an option", dir, "-x", "not the name of a branch", nil},
		{"out of the refs", dir, "../../x", "not the name of a branch", nil},
		{"checked out", dir, "main", "is checked out in another worktree", nil},
		{"checked out beside", dir, "busy", "is checked out in another worktree", nil},
		{"below a branch", dir, "taken/x", "there is a branch taken", nil},
		{"read-only", dir, "auto", "has no overlay for it", map[string]string{"agentsafe.dev/workspace": "readonly"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := bare(t)
			b := box.Bundle(t, func(s *specs.Spec) {
				s.Mounts = append(s.Mounts, specs.Mount{Destination: "/job", Type: "bind", Source: c.source, Options: []string{"rbind"}})
				s.Process.Cwd = "/job"
				s.Annotations = map[string]string{"agentsafe.dev/worktree": c.branch}
				maps.Copy(s.Annotations, c.annotations)
			})
			r := d.Do(t, "create", "--bundle", b.Dir, b.ID)
			if r.Exit == 0 {
				d.Do(t, "delete", "--force", b.ID)
			}
			if r.Exit == 0 || !strings.Contains(r.Stderr, c.want) {
				t.Errorf("want %q: %v", c.want, r)
			}
		})
	}
	for _, of := range []string{dir, other} {
		os.Remove(of + "-worktrees") // it goes with the last folder in it, or was never made
	}
	if now := listing(t, filepath.Dir(dir)); now != before {
		t.Errorf("left:\n%s\nwas:\n%s", now, before)
	}
}
