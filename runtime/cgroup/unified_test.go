package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestUnifiedHost runs this package's tests in a mount namespace where /sys/fs/cgroup is cgroup v2, as on a current
// distribution. On a hybrid machine it offers only the controllers that v1 doesn't use.
func TestUnifiedHost(t *testing.T) {
	if testHost(t).Unified {
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), roleEnv+"="+roleUnified)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS: TestCloneIntoCgroup") {
		t.Errorf("the tests didn't run as on v2:\n%s", out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "probe ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

func TestCloneIntoCgroup(t *testing.T) {
	host := testHost(t)
	g := testGroup(t, nil)
	dir, err := g.Dir()
	if !host.Unified {
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("on v1: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/bin/cat", "/proc/self/cgroup")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "0::"+testPath(t)) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestUnifiedLimits(t *testing.T) {
	host := testHost(t)
	if !host.Unified {
		return
	}
	if !host.has("hugetlb") {
		t.Skip("probe hugetlb: no controller on the unified hierarchy to test with")
	}
	g := testGroup(t, &specs.LinuxResources{
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 4 << 20}},
		Unified:        map[string]string{"cgroup.max.depth": "3"},
	})
	if got := readFile(t, g, "", "hugetlb.2MB.max"); got != "4194304" {
		t.Errorf("hugetlb.2MB.max = %q", got)
	}
	if got := readFile(t, g, "", "cgroup.max.depth"); got != "3" {
		t.Errorf("cgroup.max.depth = %q", got)
	}
	if err := g.Set(&specs.LinuxResources{HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 2 << 20}}}); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, g, "", "hugetlb.2MB.max"); got != "2097152" {
		t.Errorf("after Set: hugetlb.2MB.max = %q", got)
	}
}

// TestUndelegatedController: a limit without its controller is an error that names both, and leaves nothing.
func TestUndelegatedController(t *testing.T) {
	host := testHost(t)
	if !host.Unified {
		return
	}
	cfg := testPlan(t, nil)
	cfg.needs = []need{{"none", "linux.resources.none"}} // as if an ancestor withheld it
	_, err := Create(cfg)
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "linux.resources.none: controller none") {
		t.Errorf("got %v", err)
	}
	if exists(cfg.Paths[""]) {
		t.Error("cgroup left")
	}
}

func TestOwnerUID(t *testing.T) {
	host := testHost(t)
	if !host.Unified {
		return
	}
	cfg, err := Plan(Input{ID: "t", CgroupsPath: testPath(t), OwnerUID: new(1234), Host: host})
	if err != nil {
		t.Fatal(err)
	}
	g, err := Create(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer endGroup(t, g)
	for _, name := range []string{"", "/cgroup.procs", "/cgroup.subtree_control"} {
		info, err := os.Stat(g.Path("") + name)
		if err != nil {
			t.Fatal(err)
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 1234 {
			t.Errorf("%s belongs to %d", name, uid)
		}
	}
}
