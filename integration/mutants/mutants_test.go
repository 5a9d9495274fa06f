package mutants

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// source returns the mutant's file and its mutated text.
func (m *mutant) source(t *testing.T) (file, mutated string) {
	t.Helper()
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(root, m.file)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mutated = string(data)
	for _, x := range [][2]string{{m.old, m.text}, m.more} {
		if x[0] == "" {
			continue
		}
		if n := strings.Count(mutated, x[0]); n != 1 {
			t.Fatalf("%s has %q %d times, want it once", m.file, x[0], n)
		}
		mutated = strings.Replace(mutated, x[0], x[1], 1)
	}
	return file, mutated
}

// TestDefencesExist: the text that a mutant exchanges is there once, and so is its test.
func TestDefencesExist(t *testing.T) {
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants() {
		m.source(t)
		out, err := exec.Command("grep", "-hoE", "--include=*_test.go", "-r", "^func Test[A-Za-z0-9_]+", filepath.Join(root, m.dir())).Output()
		if err != nil {
			t.Fatal(err)
		}
		for name := range strings.SplitSeq(m.test, "|") {
			if !strings.Contains(string(out)+"\n", "func "+name+"\n") {
				t.Errorf("%s: %s has no %s", m.defence, m.dir(), name)
			}
		}
	}
}

// TestDefencesMatter builds each mutant and wants its attack to succeed.
func TestDefencesMatter(t *testing.T) {
	if os.Getenv("AGENTSAFE_TEST_LONG") == "" {
		t.Skip("probe AGENTSAFE_TEST_LONG: each mutant is a build and an attack")
	}
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{}
	for _, m := range mutants() {
		tests[m.dir()] = append(tests[m.dir()], m.test)
		t.Run(m.defence, func(t *testing.T) {
			out, err := attack(t, root, &m)
			if err == nil {
				t.Errorf("%s passes on a build without the defence\n%s", m.test, out)
			} else if !strings.Contains(out, "--- FAIL: Test") {
				t.Errorf("%s could not be run: %v\n%s", m.test, err, out)
			}
		})
	}
	// What fails there passes here: it is the defence that was missing, and not something else of such a build.
	for dir, list := range tests {
		t.Run("nothing taken out/"+dir, func(t *testing.T) {
			whole := mutants()[0]
			whole.text, whole.test, whole.pkg, whole.more = whole.old, strings.Join(list, "|"), dir, [2]string{}
			if out, err := attack(t, root, &whole); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// dir is the directory of the mutant's test.
func (m *mutant) dir() string {
	if m.pkg == "" {
		return "integration/attacks"
	}
	return m.pkg
}

// attack builds the mutant and runs its test against it.
func attack(t *testing.T, root string, m *mutant) (string, error) {
	t.Helper()
	file, mutated := m.source(t)
	dir := t.TempDir()
	changed := filepath.Join(dir, "mutant.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{changed: []byte(mutated), filepath.Join(dir, "overlay.json"): overlay} {
		if err := os.WriteFile(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "AGENTSAFE_TEST_LONG=")
	if strings.HasPrefix(m.dir(), "integration/") {
		env = append(env, "AGENTSAFE_TEST_RUNTIME="+programs(t, root, dir), "AGENTSAFE_TEST_SHIM=")
	}
	test := exec.Command("go", "test", "-count=1", "-overlay", filepath.Join(dir, "overlay.json"), "-run", "^("+m.test+")$", "./"+m.dir())
	test.Dir, test.Env = root, env
	out, err := test.CombinedOutput()
	return string(out), err
}

// programs builds the mutant's programs in dir, where overlay.json is, and returns the runtime's path.
func programs(t *testing.T, root, dir string) string {
	t.Helper()
	// The shim, too: the attacks run through both.
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", dir+"/", "./cmd/agentsafe",
		"./cmd/agentsafe-shim", "./cmd/containerd-shim-agentsafe-v2", "./cmd/agentsafe-gateway", "./cmd/agentsafe-monitor", "./cmd/agentsafectl")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the mutant: %v\n%s", err, out)
	}
	// The helpers are found beside the program.
	beside, err := filepath.Glob(filepath.Join(root, "bin", "agentsafe-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, helper := range beside {
		if err := os.Symlink(helper, filepath.Join(dir, filepath.Base(helper))); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "agentsafe")
}
