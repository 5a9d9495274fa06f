package moby

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// buildRuntime holds the path of the runtime that BuildKit's steps get: DOCKER_BUILDKIT_RUNC_COMMAND is read when the
// daemon starts, and names a program that looks here.
const buildRuntime = "/run/build-runtime"

// writeBuildCommand makes that program.
func writeBuildCommand(path string) error {
	return os.WriteFile(path, []byte("#!/bin/sh\necho \"$@\" >>"+buildRuntime+".calls\nexec \"$(cat "+buildRuntime+")\" \"$@\"\n"), 0o755)
}

// TestBuildKit builds with the BuildKit of the current dockerd, whose steps agentsafe runs where
// DOCKER_BUILDKIT_RUNC_COMMAND says so: steps with mounts, a secret, an agent of keys, the engine's network and none. What
// is in the image must be what runc's steps leave.
func TestBuildKit(t *testing.T) {
	runc, ours := harness.Peers(t)
	server := engine.up(t, byName, "--entrypoint", "/bin/probe", image, "serve", ":80", "served")
	key := filepath.Join(box.TempDir(t), "key")
	box.MustRun(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	t.Cleanup(func() {
		os.Remove(buildRuntime)
		os.Remove(buildRuntime + ".calls")
		engine.must(t, "builder", "prune", "--all", "--force")
		box.MustRun(t, "find", "/sys/fs/cgroup", "-depth", "-type", "d", "-path", "*"+box.CgroupParent()+"/buildkit*", "-exec", "rmdir", "{}", ";")
	})
	recipe, err := os.ReadFile("../stacks/testdata/buildkit/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	dir := box.TempDir(t)
	box.MustRun(t, "cp", "-r", "../stacks/testdata/buildkit/.", dir)
	alone := "\nRUN --network=none ls /sys/class/net >alone\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), append(recipe, alone...), 0o644); err != nil {
		t.Fatal(err)
	}
	flags := []string{
		"--build-arg", "SERVER=" + engine.must(t, "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", server),
		"--ssh", "default=" + key, "--secret", "id=word,src=" + filepath.Join(dir, "kept"),
	}
	build := func(stdin string, args ...string) harness.Result {
		args = append([]string{client, "-H", "unix://" + socket, "build", "--no-cache", "--progress", "plain"}, args...)
		return box.Run(t, harness.Cmd{Args: args, Stdin: stdin, Env: []string{"DOCKER_BUILDKIT=1"}, Timeout: 5 * time.Minute})
	}
	stories := map[string]string{}
	for _, p := range []harness.Peer{runc, ours} {
		if err := os.WriteFile(buildRuntime, []byte(p.Path), 0o644); err != nil {
			t.Fatal(err)
		}
		name := "kit:" + p.Name
		if r := build("", append(slices.Clip(flags), "--tag", name, dir)...); r.Exit != 0 {
			t.Fatalf("under %s: not built:\n%v", p.Name, r)
		}
		t.Cleanup(func() { engine.must(t, "rmi", "--force", name) })
		failed := build("FROM "+image+"\nRUN exit 7\n", "-")
		c := engine.must(t, "create", "--runtime", byName, name)
		files := box.MustRun(t, "sh", "-c", client+" -H unix://"+socket+" export "+c+" | tar --numeric-owner -tvf - | sed 's/  */ /g; s/ 20[2-9][0-9]-[^ ]* [^ ]* / now /'")
		engine.must(t, "rm", c)
		stories[p.Name] = engine.must(t, "run", "--rm", "--runtime", byName, name) + "\n" + regexp.MustCompile(`exit code: \d+`).FindString(failed.Stderr) + "\n" + files
	}
	for _, want := range []string{"bind: from the first read-only", "cache: cached", "network: served eth0", "secret: 5", "ssh: ok", "alone: lo \n", "exit code: 7"} {
		if !strings.Contains(stories["runc"], want) {
			t.Errorf("nothing says %q:\n%s", want, stories["runc"])
		}
	}
	if stories["agentsafe"] != stories["runc"] {
		t.Errorf("another image:\n--- runc\n%s\n--- agentsafe\n%s", stories["runc"], stories["agentsafe"])
	}
	if calls, err := os.ReadFile(buildRuntime + ".calls"); err != nil || strings.Count(string(calls), " run ") < 20 {
		t.Errorf("BuildKit has not called for the steps: %v\n%s", err, calls)
	}
}
