package vm

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// suites are the packages whose subject is the kernel, systemd, or a whole container; AGENTSAFE_TEST_VM_ONLY names some of
// them, with commas between, each with = and a regular expression of its tests if not all are wanted.
func suites() []suite {
	all := []suite{
		{dir: "runtime/cgroup"},
		{dir: "runtime/initproc"},
		{dir: "netns"},
		{dir: "fs/rootfs"},
		{dir: "fs/safepath"},
		{dir: "profiles"},
		{dir: "integration/oci"},
		{dir: "integration/hardening"},
		// The shim where events and statistics are those of cgroup v2, beneath both containerds.
		{dir: "integration/shim", run: "^(TestEngines|TestEventsInOrder|TestStates|TestOOMComesBeforeTheExit|TestKilledShim.*|TestGroup|TestTerminal)$"},
		// Limits as cgroups that were delegated to an ordinary user, and a clock that jumps: no machine but this one may.
		{dir: "integration/rootless", run: "^TestDelegation$"},
		{dir: "integration/clock"},
	}
	only := os.Getenv("AGENTSAFE_TEST_VM_ONLY")
	if only == "" {
		return all
	}
	var out []suite
	for name := range strings.SplitSeq(only, ",") {
		dir, run, chosen := strings.Cut(name, "=")
		if i := slices.IndexFunc(all, func(s suite) bool { return s.dir == dir }); i >= 0 {
			if chosen {
				all[i].run = run
			}
			out = append(out, all[i])
		}
	}
	return out
}

// TestSystemdCgroupV2 runs the suites on Debian's kernel with systemd and pure cgroup v2.
func TestSystemdCgroupV2(t *testing.T) {
	if os.Getenv("AGENTSAFE_TEST_LONG") == "" {
		t.Skip("probe AGENTSAFE_TEST_LONG: not set; the machine takes minutes (make test-long)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Minute)
	defer cancel()
	img, err := buildImage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	work, err := buildWork(ctx, dir, suites())
	if err != nil {
		t.Fatal(err)
	}
	results, err := boot(ctx, dir, img, work)
	if err != nil {
		t.Error(err)
	}
	if keep := os.Getenv("AGENTSAFE_TEST_VM_LOG"); keep != "" {
		if err := os.WriteFile(filepath.Clean(keep), results, 0o600); err != nil {
			t.Error(err)
		}
	}
	replay(t, parse(string(results)))
}

// replay makes a subtest of every test that ran in the machine.
func replay(t *testing.T, sections []section) {
	t.Helper()
	if len(sections) != len(suites()) {
		t.Errorf("%d of %d suites ran", len(sections), len(suites()))
	}
	for _, s := range sections {
		t.Run(strings.ReplaceAll(s.name, "/", "-"), func(t *testing.T) {
			failed := false
			for _, o := range s.tests {
				failed = failed || o.verdict == "FAIL"
				t.Run(o.name, func(t *testing.T) {
					switch o.verdict {
					case "FAIL":
						t.Error(o.output)
					case "SKIP":
						t.Skip(strings.TrimSpace(o.output))
					}
				})
			}
			if len(s.tests) == 0 || s.exit != "0" && !failed {
				t.Errorf("exit %q, %d tests:\n%s", s.exit, len(s.tests), s.rest)
			}
		})
	}
}
