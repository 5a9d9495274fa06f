package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// toolsDir is where the programs, runtimetest and the root file system are.
func toolsDir() (string, error) {
	root, err := harness.RepoRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "integration", "engines", "runtimetools")
	recipe, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	return harness.Cached("runtimetools", "runtime-tools, version 1\n"+string(recipe), func(dir string) error {
		const source = "github.com/opencontainers/runtime-tools"
		build := exec.Command("go", "build", "-mod=readonly", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/",
			source+"/validation/...", source+"/cmd/runtimetest")
		build.Dir, build.Env = module, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build runtime-tools: %w\n%s", err, out)
		}
		list := exec.Command("go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", source)
		list.Dir = module
		out, err := list.Output()
		if err != nil {
			return fmt.Errorf("find runtime-tools: %w", err)
		}
		data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), rootfsName))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, rootfsName), data, 0o644)
	})
}

const rootfsName = "rootfs-amd64.tar.gz"

// undecided is left out: it wants what a poststart hook writes to come after what the process writes, and all that a
// runtime can do is to call the hook when the process has been executed. Which of the two is the quicker is the
// scheduler's to say. That poststart hooks come after the execution is in integration/oci.
const undecided = "poststart"

// programs lists the validation programs of dir.
func programs(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if e.Name() != "runtimetest" && e.Name() != rootfsName && e.Name() != undecided {
			out = append(out, e.Name())
		}
	}
	return out
}

// subject is a runtime with a state directory of its own, as the one word that the programs want.
type subject struct {
	name, command, root string
}

// subjects writes a start script for each of the runtimes.
func subjects(t *testing.T, runtimes []string) []subject {
	t.Helper()
	runc, agentsafe := harness.Peers(t)
	crun, err := exec.LookPath("crun")
	if err != nil {
		t.Fatal(err)
	}
	dir := box.TempDir(t)
	var out []subject
	for _, r := range []struct{ name, path, global, before string }{
		{runc.Name, runc.Path, "", ""},
		// crun 1.8 ends with "unknown version specified" for a later version of the specification than 1.0.
		{"crun", crun, "", `for a; do [ "$last" != --bundle ] || sed -i 's/"ociVersion": *"[^"]*"/"ociVersion":"1.0.2"/' "$a/config.json"; last=$a; done` + "\n"},
		{agentsafe.Name, agentsafe.Path, " --profile none", ""},
	} {
		if !slices.Contains(runtimes, r.name) {
			continue
		}
		s := subject{r.name, filepath.Join(dir, r.name), filepath.Join(dir, "state-"+r.name)}
		script := fmt.Sprintf("#!/bin/sh\n%sexec %s --root %s%s \"$@\"\n", r.before, r.path, s.root, r.global)
		if err := os.WriteFile(s.command, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}

// verdict is what came of one program under one runtime.
type verdict struct {
	pass bool
	why  string
}

// failure finds what a program reports of one: a point that is not ok, or an error that belongs to no point. An error in
// the diagnosis of a point that is ok is one that the program wanted.
func failure(stdout string) string {
	if found := regexp.MustCompile(`(?m)^not ok.*`).FindString(stdout); found != "" {
		return found
	}
	if !regexp.MustCompile(`(?m)^ok`).MatchString(stdout) {
		return strings.TrimSpace(regexp.MustCompile(`(?m)^\s+"error": "[^"]+.*`).FindString(stdout))
	}
	return ""
}

// validate runs a program, and removes the containers that it leaves.
func validate(s subject, tools, program string) verdict {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(tools, program))
	cmd.Dir, cmd.Env = tools, append(os.Environ(), "RUNTIME="+s.command, "TMPDIR="+filepath.Dir(s.root))
	// A mount namespace of its own, since a runtime may leave mounts there (runc does in linux_ns_itype).
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if found := failure(stdout.String()); found != "" {
		return verdict{why: found + "\n" + stderr.String()}
	}
	if err != nil {
		return verdict{why: fmt.Sprintf("%v\n%s", err, stderr.String())}
	}
	return verdict{pass: true}
}

// sharesCgroups says that a program uses a cgroup whose path is fixed, so that only one may run at a time.
func sharesCgroups(program string) bool {
	return strings.HasPrefix(program, "linux_cgroups_") || strings.HasPrefix(program, "delete_")
}

// validateAll runs every program under each of the runtimes. Most of the time passes in the programs' own waits of a second.
func validateAll(t *testing.T, tools string, names, runtimes []string) map[string]map[string]verdict {
	t.Helper()
	out := map[string]map[string]verdict{}
	var lock sync.Mutex
	judge := func(s subject, name string) {
		v := validate(s, tools, name)
		if !v.pass {
			t.Logf("%s under %s: %.300s", name, s.name, v.why)
		}
		lock.Lock()
		defer lock.Unlock()
		if out[name] == nil {
			out[name] = map[string]verdict{}
		}
		out[name][s.name] = v
	}
	var wg sync.WaitGroup
	fixed := subjects(t, runtimes)
	wg.Go(func() {
		for _, s := range fixed {
			for _, name := range names {
				if sharesCgroups(name) {
					judge(s, name)
					forceDelete(s)
				}
			}
		}
	})
	slots := make(chan struct{}, 6)
	free := subjects(t, runtimes)
	for _, s := range free {
		for _, name := range names {
			if sharesCgroups(name) {
				continue
			}
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				judge(s, name)
			})
		}
	}
	wg.Wait()
	for _, s := range free {
		forceDelete(s)
	}
	return out
}

// judgeAgain runs the programs alone that agentsafe, unlike what is recorded, did not pass: several look at the clock, or
// wait for a fixed time, and beside others on a busy machine that is no verdict.
func judgeAgain(t *testing.T, tools string, recorded, results map[string]map[string]verdict) {
	t.Helper()
	s := subjects(t, []string{"agentsafe"})[0]
	for name, now := range results {
		for range 2 {
			if now["agentsafe"].pass || !recorded[name]["agentsafe"].pass {
				break
			}
			t.Logf("%s once more, alone", name)
			now["agentsafe"] = validate(s, tools, name)
			forceDelete(s)
		}
	}
}

// forceDelete removes the containers that programs have left.
func forceDelete(s subject) {
	entries, _ := os.ReadDir(s.root) // none if nothing was created
	for _, e := range entries {
		_ = exec.Command(s.command, "delete", "--force", e.Name()).Run() // the box looks for leftovers
	}
}

// lockMachine keeps two runs on one machine apart: the programs' cgroups have fixed names.
func lockMachine(t *testing.T) {
	t.Helper()
	dir, err := harness.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "conformance.lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
}
