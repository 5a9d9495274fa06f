package stacks

import (
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// contents are the files of an image with owner, mode and link, but without the times of what was made just now.
func contents(t *testing.T, archive string) string {
	t.Helper()
	dir := box.TempDir(t)
	box.MustRun(t, "tar", "-C", dir, "-xf", archive)
	layers, err := filepath.Glob(filepath.Join(dir, "*", "layer.tar"))
	if flat, ferr := filepath.Glob(filepath.Join(dir, "*.tar")); ferr == nil { // buildah's
		layers = append(layers, flat...)
	}
	if err != nil || len(layers) == 0 {
		t.Fatalf("no layers in %s: %v", archive, err)
	}
	var out []string
	for _, l := range layers {
		list := box.MustRun(t, "tar", "--numeric-owner", "--full-time", "--utc", "-tvf", l)
		lines := regexp.MustCompile(` 20[2-9]\d-\S+ \S+ `).ReplaceAllString(list, " now ")
		out = append(out, regexp.MustCompile(` {2,}`).ReplaceAllString(lines, " "))
	}
	sort.Strings(out) // layers have random names in an archive
	return strings.Join(out, "\n---\n")
}

// TestClassicBuilder builds an image with the classic builder, which takes the daemon's default runtime for each step,
// and wants the layers that runc's steps leave, down to modes and mount points.
func TestClassicBuilder(t *testing.T) {
	t.Cleanup(func() { engine.Configure(t, map[string]any{"default-runtime": nil}) })
	stories := map[string]string{}
	for _, runtime := range []string{"runc", "agentsafe"} {
		engine.Configure(t, map[string]any{"default-runtime": runtime})
		if got := engine.Must(t, "info", "--format", "{{.DefaultRuntime}}"); got != runtime {
			t.Fatalf("the default runtime is %s, want %s", got, runtime)
		}
		name := "built:" + runtime
		r := box.Run(t, harness.Cmd{
			Args: engine.Args("build", "--no-cache", "--build-arg", "GREETING=good day", "--memory", "256m", "--tag", name, "."), Dir: folder(t, "build"),
			Env: []string{"DOCKER_BUILDKIT=0"}, Timeout: 5 * time.Minute,
		})
		if r.Exit != 0 || !strings.Contains(r.Stdout, "Running in") {
			t.Fatalf("under %s: not built, or not by the classic builder:\n%v", runtime, r)
		}
		t.Cleanup(func() { engine.Must(t, "rmi", "--force", name) })
		var s story
		s.tell("steps", strings.Count(r.Stdout, "Running in"))
		s.tell("runs", engine.Do(t, "run", "--rm", name).Stdout)
		s.tell("made", engine.Do(t, "run", "--rm", "--entrypoint", "cat", name, "/etc/greeting", "/job/who", "/job/umask", "/job/one", "/src/kept").Stdout)
		s.tell("configuration", engine.Must(t, "inspect", "--format", "{{.Config.User}} {{.Config.WorkingDir}} {{.Config.Healthcheck}} {{.Config.Labels}}", name))
		archive := filepath.Join(box.TempDir(t), "image.tar")
		engine.Must(t, "save", "-o", archive, name)
		s.tell("contents", contents(t, archive))
		failed := box.Run(t, harness.Cmd{
			Args: engine.Args("build", "--no-cache", "-"), Stdin: "FROM " + small + "\nRUN exit 7\n", Env: []string{"DOCKER_BUILDKIT=0"},
		})
		s.tell("a failing step", failed.Exit, harness.Neutral(lastLine(failed.Stderr)))
		stories[runtime] = s.String()
	}
	sameBuilds(t, stories)
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func sameBuilds(t *testing.T, stories map[string]string) {
	t.Helper()
	if !strings.Contains(stories["runc"], "made by builder") || !strings.Contains(stories["runc"], "good day") {
		t.Errorf("nothing of the recipe is in the image:\n%s", stories["runc"])
	}
	if stories["agentsafe"] != stories["runc"] {
		t.Errorf("another image:\n--- runc\n%s--- agentsafe\n%s", stories["runc"], stories["agentsafe"])
	}
}

// TestBuildah builds the same with buildah, by its own command and step by step with `buildah run`.
func TestBuildah(t *testing.T) {
	busybox, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(box.Dir, "buildah")
	buildah := func(args ...string) harness.Result {
		t.Helper()
		all := append([]string{"/usr/bin/buildah", "--root", dir, "--runroot", "/run/buildah-test", "--storage-driver", "overlay"}, args...)
		return box.Run(t, harness.Cmd{Args: all, Dir: folder(t, "build"), Timeout: 4 * time.Minute})
	}
	must := func(args ...string) string {
		t.Helper()
		r := buildah(args...)
		if r.Exit != 0 {
			t.Fatalf("want success:\n%v", r)
		}
		return strings.TrimSpace(r.Stdout)
	}
	must("pull", "--quiet", "docker-archive:"+busybox.Archive)
	t.Cleanup(func() {
		must("rmi", "--all", "--force")
		if err := os.RemoveAll("/run/buildah-test"); err != nil {
			t.Error(err)
		}
	})
	runc, ours := harness.Peers(t)
	stories := map[string]string{}
	for _, p := range []harness.Peer{runc, ours} {
		name := "localhost/built:" + p.Name
		limits := []string{"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"}
		build := append([]string{"build", "--no-cache", "--pull-never", "--runtime", p.Path, "--isolation", "oci", "--network", "none"}, limits...)
		build = append(build, "--build-arg", "BASE="+harness.BusyboxName, "--build-arg", "GREETING=good day", "--format", "docker", "--tag", name, ".")
		must(build...)
		var s story
		c := must("from", "--pull-never", name)
		step := append([]string{"run", "--runtime", p.Path, "--isolation", "oci", "--network", "none"}, "--user", "builder", "--env", "A=b", c, "--")
		r := buildah(append(step, "sh", "-c", "tool; echo $A; cat /etc/greeting /job/who /src/kept; touch /job/more; exit 4")...)
		s.tell("run", r.Exit, r.Stdout)
		s.tell("kept", buildah(append(step, "ls", "/job")...).Stdout)
		s.tell("no such command", buildah(append(step, "no-such-command")...).Exit)
		s.tell("with a mount", buildah(append(step[:len(step)-2], "--volume", box.TempDir(t)+":/mnt:ro", c, "--", "sh", "-c", "touch /mnt/x; echo $?")...).Stdout)
		must("commit", "--quiet", "--rm", "--format", "docker", c, name)
		archive := filepath.Join(box.TempDir(t), "image.tar")
		must("push", "--quiet", name, "docker-archive:"+archive)
		s.tell("contents", contents(t, archive))
		stories[p.Name] = s.String()
	}
	sameBuilds(t, stories)
}
