package stacks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestBuildKit builds the image of TestClassicBuilder with the BuildKit that is in dockerd. That takes no notice of the
// daemon's runtimes: it runs each step by `runc run`, whatever program has that name. Here agentsafe has, in the mount
// namespace of this test's daemon, and the layers must be those that runc's steps leave.
func TestBuildKit(t *testing.T) {
	runc, ours := harness.Peers(t)
	stories := map[string]string{}
	calls := filepath.Join(box.TempDir(t), "calls")
	for _, runtime := range []string{"runc", "agentsafe"} {
		if runtime == "agentsafe" {
			wrapper := filepath.Join(box.TempDir(t), "runc")
			script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >> %s\nexec %s \"$@\"\n", calls, ours.Path)
			if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			box.MustRun(t, "mount", "--bind", wrapper, runc.Path)
			t.Cleanup(func() { box.MustRun(t, "umount", runc.Path) })
		}
		name := "kit:" + runtime
		r := box.Run(t, harness.Cmd{
			Args: engine.Args("build", "--no-cache", "--progress", "plain", "--build-arg", "GREETING=good day", "--tag", name, "."), Dir: folder(t, "build"),
			Env: []string{"DOCKER_BUILDKIT=1"}, Timeout: 5 * time.Minute,
		})
		if r.Exit != 0 || !strings.Contains(r.Stderr, "exporting layers") {
			t.Fatalf("under %s: not built, or not by BuildKit:\n%v", runtime, r)
		}
		t.Cleanup(func() {
			engine.Must(t, "rmi", "--force", name)
			engine.Must(t, "builder", "prune", "--all", "--force")
		})
		var s story
		s.tell("runs", engine.Do(t, "run", "--rm", name).Stdout)
		s.tell("made", engine.Do(t, "run", "--rm", "--entrypoint", "cat", name, "/etc/greeting", "/job/who", "/job/umask", "/job/one", "/src/kept").Stdout)
		s.tell("configuration", engine.Must(t, "inspect", "--format", "{{.Config.User}} {{.Config.WorkingDir}} {{.Config.Labels}}", name))
		archive := filepath.Join(box.TempDir(t), "image.tar")
		engine.Must(t, "save", "-o", archive, name)
		s.tell("contents", contents(t, archive))
		failed := box.Run(t, harness.Cmd{
			Args: engine.Args("build", "--no-cache", "--progress", "plain", "-"), Stdin: "FROM " + small + "\nRUN exit 7\n", Env: []string{"DOCKER_BUILDKIT=1"},
		})
		s.tell("a failing step", failed.Exit, harness.Neutral(lastLine(failed.Stderr)))
		stories[runtime] = s.String()
	}
	said, err := os.ReadFile(calls)
	if err != nil || strings.Count(string(said), " run ") < 3 {
		t.Errorf("BuildKit has not called agentsafe for the steps: %v\n%s", err, said)
	}
	sameBuilds(t, stories)
}
