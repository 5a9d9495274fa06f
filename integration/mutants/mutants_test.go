package mutants

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// mutant is a defence that is taken out, and the attack that must then succeed.
type mutant struct {
	defence   string
	file      string // of the repository
	old, text string // what is exchanged, and for what
	test      string // of integration/attacks
}

func mutants() []mutant {
	return []mutant{
		{
			"descriptors are marked to close at execve", "runtime/initproc/steps_process.go",
			"imm(unix.CLOSE_RANGE_CLOEXEC))", "imm(0x40))", "TestAttack_LeakedDescriptors",
		},
		{
			"a working directory outside of the root is refused", "runtime/initproc/steps_process.go",
			`is outside of the container", cwd, 0xff, '/', unix.EXDEV)`, `is outside of the container", cwd, 0, 0, unix.EXDEV)`,
			"TestAttack_CwdOutside|TestAttack_CVE_2024_21626_CwdFd",
		},
		{
			"the child that joins is born into the pid namespace last", "runtime/initproc/steps.go",
			`{"pid namespace", func(p *Program, s *execState) { planFork(p, s.SyncFD) }},`, ``, "TestAttack_CVE_2016_9962_ExecRoot",
		},
		{
			"mount points of proc and sysfs are no symlinks", "runtime/initproc/steps_mount.go",
			"resolve |= unix.RESOLVE_NO_SYMLINKS", "resolve |= 0", "TestAttack_CVE_2023_27561_SymlinkedProc",
		},
		{
			"/dev of the image is no symlink", "runtime/initproc/steps_dev.go",
			"inRoot|unix.RESOLVE_NO_SYMLINKS).into(s.dev)", "inRoot).into(s.dev)", "TestAttack_CVE_2026_41579_SymlinkedDev",
		},
		{
			"what the image has in the place of a device is compared", "runtime/initproc/steps_dev.go",
			`orElse(exists, unix.EEXIST)
	if d.UID`, `ignore(unix.EEXIST)
	if d.UID`, "TestAttack_CVE_2025_31133_FakeDevNull",
		},
		{
			"the mount point of a terminal is no symlink", "runtime/initproc/steps_dev.go",
			"unix.O_PATH, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS).into(into)", "unix.O_PATH, 0).into(into)",
			"TestAttack_CVE_2025_52565_SwappedConsole",
		},
		{
			"mount points are looked up beneath the root", "runtime/initproc/steps_mount.go",
			"inRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS", "inRoot = 0",
			"TestAttack_CVE_2021_30465_MountTargetSymlink|TestAttack_CVE_2021_30465_RacingTarget",
		},
		{
			"inheritable capabilities are those of the spec", "runtime/initproc/steps_process.go",
			"lo(c.Inheritable)|c.Effective", "lo(c.Permitted)|c.Effective", "TestAttack_CVE_2022_29162_InheritableCaps",
		},
		{
			"only parameters of namespaces can be set", "runtime/container/plan.go",
			`	return "", false
}

func planPersonality`, `	return specs.MountNamespace, true
}

func planPersonality`, "TestAttack_CVE_2022_0811_SysctlSmuggling",
		},
		{
			"a namespace joined by path may be the host's", "runtime/container/namespaces.go",
			"a.Dev == b.Dev && a.Ino == b.Ino", "a.Dev == b.Dev && a.Ino != a.Ino", "TestAttack_HostNamespaceByPath",
		},
		{
			"a root that is only entered covers the host's", "runtime/initproc/steps_mount.go",
			`planMove(p, "move root over /", val(s.root), imm(unix.AT_FDCWD), "/")`, ``, "TestAttack_NoPivotChrootEscape",
		},
	}
}

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
	if n := strings.Count(string(data), m.old); n != 1 {
		t.Fatalf("%s has %q %d times, want it once", m.file, m.old, n)
	}
	return file, strings.Replace(string(data), m.old, m.text, 1)
}

// TestDefencesExist: the text that a mutant exchanges is there once, and so is its test.
func TestDefencesExist(t *testing.T) {
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("grep", "-rhoE", "^func TestAttack_[A-Za-z0-9_]+", filepath.Join(root, "integration", "attacks")).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants() {
		m.source(t)
		for name := range strings.SplitSeq(m.test, "|") {
			if !strings.Contains(string(out)+"\n", "func "+name+"\n") {
				t.Errorf("%s: integration/attacks has no %s", m.defence, name)
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
	var tests []string
	for _, m := range mutants() {
		tests = append(tests, m.test)
		t.Run(m.defence, func(t *testing.T) {
			out, err := attack(t, root, &m)
			if err == nil {
				t.Errorf("%s passes on a build without the defence\n%s", m.test, out)
			} else if !strings.Contains(out, "--- FAIL: TestAttack_") {
				t.Errorf("%s could not be run: %v\n%s", m.test, err, out)
			}
		})
	}
	// What fails there passes here: it is the defence that was missing, and not something else of such a build.
	t.Run("nothing taken out", func(t *testing.T) {
		whole := mutants()[0]
		whole.text, whole.test = whole.old, strings.Join(tests, "|")
		if out, err := attack(t, root, &whole); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
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
	runtime := filepath.Join(dir, "agentsafe")
	// The shim, too: the attacks run through both.
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", dir+"/", "./cmd/agentsafe", "./cmd/agentsafe-shim", "./cmd/containerd-shim-agentsafe-v2")
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
		if err := os.Symlink(helper, filepath.Join(dir, filepath.Base(helper))); err != nil {
			t.Fatal(err)
		}
	}
	test := exec.Command("go", "test", "-count=1", "-run", "^("+m.test+")$", "./integration/attacks")
	test.Dir, test.Env = root, append(os.Environ(), "AGENTSAFE_TEST_RUNTIME="+runtime, "AGENTSAFE_TEST_SHIM=")
	out, err := test.CombinedOutput()
	return string(out), err
}
