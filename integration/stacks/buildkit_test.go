package stacks

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestBuildKit builds with the BuildKit that is in dockerd. That takes no notice of the daemon's runtimes: it runs each
// step by `runc run`, whatever program has that name. Here agentsafe has, in the mount namespace of this test's daemon,
// and the images must be those that runc's steps leave: one of steps with mounts, a secret, an agent of keys and a network,
// in the long run that of the classic builder's test, too.
func TestBuildKit(t *testing.T) {
	runc, ours := harness.Peers(t)
	server := engine.Up(t, harness.Peer{Name: "agentsafe"}, "--entrypoint", "/bin/probe", small, "serve", ":80", "served")
	key := filepath.Join(box.TempDir(t), "key")
	box.MustRun(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	flags := []string{
		"--build-arg", "SERVER=" + inspect(t, server, "{{.NetworkSettings.IPAddress}}"), "--build-arg", "GREETING=good day",
		"--ssh", "default=" + key, "--secret", "id=word,src=" + filepath.Join(folder(t, "buildkit"), "kept"),
	}
	t.Cleanup(func() {
		engine.Must(t, "builder", "prune", "--all", "--force")
		box.MustRun(t, "find", "/sys/fs/cgroup", "-depth", "-type", "d", "-path", "*"+box.CgroupParent()+"/buildkit*", "-exec", "rmdir", "{}", ";")
	})
	calls := filepath.Join(box.TempDir(t), "calls")
	stories := map[string]string{}
	for _, runtime := range []string{"runc", "agentsafe"} {
		if runtime == "agentsafe" {
			wrapper := filepath.Join(box.TempDir(t), "runc")
			script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%s\nexec %s \"$@\"\n", calls, ours.Path)
			if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			box.MustRun(t, "mount", "--bind", wrapper, runc.Path)
			t.Cleanup(func() { box.MustRun(t, "umount", runc.Path) })
		}
		stories[runtime] = kitStory(t, runtime, flags)
	}
	said, err := os.ReadFile(calls)
	if err != nil || strings.Count(string(said), " run ") < 8 {
		t.Errorf("BuildKit has not called agentsafe for the steps: %v\n%s", err, said)
	}
	if stories["agentsafe"] != stories["runc"] {
		t.Errorf("another image:\n--- runc\n%s--- agentsafe\n%s", stories["runc"], stories["agentsafe"])
	}
	r := box.Run(t, harness.Cmd{
		Args: engine.Args("build", "--no-cache", "--progress", "plain", "--network", "host", "-"), Stdin: "FROM " + small + "\nRUN true\n", Env: []string{"DOCKER_BUILDKIT=1"},
	})
	if r.Exit == 0 || !strings.Contains(r.Stderr, "linux.namespaces network") {
		t.Errorf("a step on the host's network is not refused, or not by its rule:\n%v", r)
	}
	for _, want := range []string{"bind: from the first read-only", "cache: cached", "network: served eth0", "secret: 5", "ssh: ok"} {
		if !strings.Contains(stories["runc"], want) {
			t.Errorf("nothing says %q:\n%s", want, stories["runc"])
		}
	}
}

// kitStory builds both images and a step that fails, and tells what is in them.
func kitStory(t *testing.T, runtime string, flags []string) string {
	t.Helper()
	build := func(dir, stdin string, args ...string) harness.Result {
		args = append([]string{"build", "--no-cache", "--progress", "plain"}, args...)
		return box.Run(t, harness.Cmd{Args: engine.Args(args...), Dir: dir, Stdin: stdin, Env: []string{"DOCKER_BUILDKIT=1"}, Timeout: 5 * time.Minute})
	}
	var s story
	recipes := []string{"buildkit"}
	if os.Getenv("AGENTSAFE_TEST_LONG") != "" {
		recipes = append(recipes, "build")
	}
	for _, recipe := range recipes {
		name := recipe + ":" + runtime
		args := []string{"--tag", name, "."}
		r := build(folder(t, recipe), "", append(slices.Clip(flags), args...)...)
		if r.Exit != 0 || !strings.Contains(r.Stderr, "exporting layers") {
			t.Fatalf("under %s: not built, or not by BuildKit:\n%v", runtime, r)
		}
		t.Cleanup(func() { engine.Must(t, "rmi", "--force", name) })
		s.tell("runs", engine.Do(t, "run", "--rm", name).Stdout)
		s.tell("configuration", engine.Must(t, "inspect", "--format", "{{.Config.User}} {{.Config.WorkingDir}} {{.Config.Labels}}", name))
		archive := filepath.Join(box.TempDir(t), "image.tar")
		engine.Must(t, "save", "-o", archive, name)
		s.tell("contents", contents(t, archive))
	}
	failed := build("", "FROM "+small+"\nRUN exit 7\n", "-")
	code := regexp.MustCompile(`exit code: \d+`).FindString(failed.Stderr)
	s.tell("a failing step", failed.Exit, code)
	missing := build("", "FROM "+small+"\nRUN [\"/no/such/program\"]\n", "-")
	s.tell("a step without its program", missing.Exit, regexp.MustCompile(`exit code: \d+`).FindString(missing.Stderr))
	return s.String()
}
