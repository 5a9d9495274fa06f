package attacks

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// box is where all tests of this package run.
var box *harness.Box

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(context.Context) error {
			_, berr := harness.Busybox()
			_, ierr := program("intruder")
			_, serr := program("byshim")
			return errors.Join(berr, ierr, serr)
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box = b
			return nil, nil
		},
	})
}

// program builds a program of this directory: the attacker's, or the command line over the shim.
func program(name string) (string, error) {
	repo, err := harness.RepoRoot()
	if err != nil {
		return "", err
	}
	recipe := ""
	files, err := filepath.Glob(filepath.Join(repo, "integration/attacks", name, "*.go"))
	if err != nil {
		return "", err
	}
	for _, file := range append(files, filepath.Join(repo, "go.sum")) {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		recipe += string(data)
	}
	dir, err := harness.Cached(name, recipe, func(dir string) error {
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), "./integration/attacks/"+name)
		build.Dir, build.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		if err != nil {
			return errors.New(string(out))
		}
		return nil
	})
	return filepath.Join(dir, name), err
}

// arena is a runtime with a profile, and a host file that no container may reach.
type arena struct {
	*harness.Bare
	profile string
	// marker is a file of the host whose content is secret.
	marker string
}

const secret = "the host's secret"

// open makes an arena of the command line; without a profile it is the default.
func open(t *testing.T, profile string) *arena {
	t.Helper()
	_, ours := harness.Peers(t)
	return openWith(t, profile, ours)
}

// everyWay makes an arena of the command line, and one of the shim behind the same command line (byshim). An attack's
// failure prints the command, and so which of them it was.
func everyWay(t *testing.T, profile string) []*arena {
	t.Helper()
	_, ours := harness.Peers(t)
	path, err := program("byshim")
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("AGENTSAFE_TEST_SHIM") == "" {
		t.Setenv("AGENTSAFE_TEST_SHIM", filepath.Join(filepath.Dir(ours.Path), "containerd-shim-agentsafe-v2"))
	}
	return []*arena{openWith(t, profile, ours), openWith(t, profile, harness.Peer{Name: "shim", Path: path})}
}

func openWith(t *testing.T, profile string, ours harness.Peer) *arena {
	t.Helper()
	a := &arena{Bare: box.Bare(t, ours), profile: profile, marker: filepath.Join(box.TempDir(t), "marker")}
	if err := os.WriteFile(a.marker, []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	return a
}

// args is the command line for the runtime's arguments.
func (a *arena) args(args ...string) []string {
	if a.profile != "" {
		args = append([]string{"--profile", a.profile}, args...)
	}
	return a.Args(args...)
}

func (a *arena) do(t *testing.T, args ...string) harness.Result {
	t.Helper()
	return box.Run(t, harness.Cmd{Args: a.args(args...)})
}

func (a *arena) must(t *testing.T, args ...string) harness.Result {
	t.Helper()
	r := a.do(t, args...)
	if r.Exit != 0 {
		t.Fatalf("want success:\n%v", r)
	}
	return r
}

// bundle makes a bundle with the intruder in it; spoil changes its root file system.
func (a *arena) bundle(t *testing.T, mutate func(*specs.Spec), spoil func(rootfs string)) harness.Bundle {
	t.Helper()
	b := box.Bundle(t, mutate)
	attacker, err := program("intruder")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", attacker, filepath.Join(b.Rootfs(), "bin/intruder")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if spoil != nil {
		spoil(b.Rootfs())
	}
	return b
}

// run runs a bundle in the foreground.
func (a *arena) run(t *testing.T, mutate func(*specs.Spec), spoil func(rootfs string)) harness.Result {
	t.Helper()
	b := a.bundle(t, mutate, spoil)
	return a.do(t, "run", "--bundle", b.Dir, b.ID)
}

// up starts a container that runs args, and deletes it when the test ends.
func (a *arena) up(t *testing.T, mutate func(*specs.Spec), args ...string) harness.Bundle {
	t.Helper()
	b := a.bundle(t, func(s *specs.Spec) {
		s.Process.Args = args
		if mutate != nil {
			mutate(s)
		}
	}, nil)
	a.must(t, "create", "--bundle", b.Dir, b.ID)
	t.Cleanup(func() { a.do(t, "delete", "--force", b.ID) })
	a.must(t, "start", b.ID)
	return b
}

// safe fails the test if the host's secret has come out, or a host file was changed.
func (a *arena) safe(t *testing.T, r harness.Result) {
	t.Helper()
	if strings.Contains(r.Stdout+r.Stderr, secret) {
		t.Errorf("the container has read the host's file:\n%v", r)
	}
	a.untouched(t)
}

func (a *arena) untouched(t *testing.T) {
	t.Helper()
	data, err := os.ReadFile(a.marker)
	if err != nil || string(data) != secret {
		t.Errorf("the host's file was changed: %q, %v", data, err)
	}
	names, err := os.ReadDir(filepath.Dir(a.marker))
	if err != nil || len(names) != 1 {
		t.Errorf("the host's directory was changed: %v, %v", names, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), filepath.Dir(a.marker)) {
		t.Errorf("something is mounted on the host's directory (%v)", err)
	}
}

// refused wants an error that has the words, and no container.
func (a *arena) refused(t *testing.T, r harness.Result, words ...string) {
	t.Helper()
	if r.Exit == 0 {
		t.Errorf("accepted:\n%v", r)
		return
	}
	for _, w := range words {
		if !strings.Contains(r.Stderr, w) {
			t.Errorf("the error does not say %q:\n%v", w, r)
		}
	}
	if ids := a.must(t, "list", "-q").Stdout; strings.TrimSpace(ids) != "" {
		t.Errorf("left behind: %s", ids)
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	// A child that another goroutine forks meanwhile would hold the file open for writing, and executing it would fail.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// link replaces path by a symlink.
func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// without drops the mounts at the destinations.
func without(destinations ...string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		var kept []specs.Mount
		for _, m := range s.Mounts {
			drop := false
			for _, d := range destinations {
				drop = drop || m.Destination == d || strings.HasPrefix(m.Destination, d+"/")
			}
			if !drop {
				kept = append(kept, m)
			}
		}
		s.Mounts = kept
	}
}

func addCaps(s *specs.Spec, caps ...string) {
	c := s.Process.Capabilities
	c.Bounding = append(c.Bounding, caps...)
	c.Effective = append(c.Effective, caps...)
	c.Permitted = append(c.Permitted, caps...)
}

func all(list ...func(*specs.Spec)) func(*specs.Spec) {
	return func(s *specs.Spec) {
		for _, f := range list {
			f(s)
		}
	}
}
