package kernels

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// row says what becomes of each command where calls are missing: "" is success, anything else is what the error says.
type row struct {
	calls, profile   string
	run, exec, force string
	config           string // of the host
	warns            string
}

func rows() []row {
	const needs = "; agentsafe needs Linux 5.15"
	both := func(call, since string) string { return call + "(2) (Linux " + since + ")" + needs }
	creation := func(call string) row { return row{calls: call, run: both(call, "5.2")} }
	return []row{
		// Fallbacks.
		{calls: "clone3"},
		{calls: "landlock_create_ruleset,landlock_add_rule,landlock_restrict_self", profile: "none"},
		{
			calls: "landlock_create_ruleset,landlock_add_rule,landlock_restrict_self", config: `{"landlock":"best-effort"}`,
			warns: "is not enforced: this kernel has Landlock ABI 0", exec: "*",
		},
		// What a promise needs is refused by the promise's name, and by that of the way out.
		{
			calls: "landlock_create_ruleset,landlock_add_rule,landlock_restrict_self",
			run:   "nothing is silently weaker", exec: "*",
		},
		// Calls that only creation needs.
		creation("move_mount"),
		creation("fsopen"),
		creation("fsconfig"),
		creation("fsmount"),
		// Calls that every process needs. With the null device as a stream, an exec mounts its own.
		{calls: "open_tree", run: both("open_tree", "5.2"), exec: both("open_tree", "5.2")},
		{calls: "mount_setattr", run: both("mount_setattr", "5.12"), exec: both("mount_setattr", "5.12")},
		{calls: "memfd_create", run: both("memfd_create", "3.17"), exec: both("memfd_create", "3.17")},
		{calls: "openat2", run: both("openat2", "5.6"), exec: both("openat2", "5.6")},
		{calls: "faccessat2", run: both("faccessat2", "5.8"), exec: both("faccessat2", "5.8")},
		{calls: "close_range", run: both("close_range", "5.9"), exec: both("close_range", "5.9")},
		{calls: "pidfd_open", run: "*", exec: both("pidfd_open", "5.3"), force: both("pidfd_open", "5.3")},
		{calls: "pidfd_send_signal", run: "*", force: both("pidfd_send_signal", "5.1")},
		{
			calls: "openat2,open_tree,move_mount,fsopen,fsconfig,fsmount,mount_setattr,pidfd_open,close_range,faccessat2,clone3",
			run:   "openat2(2) (Linux 5.6)", exec: "pidfd_open(2) (Linux 5.3)", force: "*",
		},
	}
}

// TestWithout takes kernel features away.
func TestWithout(t *testing.T) {
	program, err := without()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows() {
		name := r.calls
		if r.profile+r.config != "" {
			name += " " + r.profile + strings.TrimSpace(r.config)
		}
		t.Run(name, func(t *testing.T) {
			_, ours := harness.Peers(t)
			before, err := box.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			d := box.Bare(t, ours)
			log := filepath.Join(box.TempDir(t), "log")
			d.Global = []string{"--log", log}
			if r.profile != "" {
				d.Global = append(d.Global, "--profile", r.profile)
			}
			configure(t, r.config)
			lacking := func(args ...string) harness.Result {
				return box.Run(t, harness.Cmd{Args: append([]string{program, r.calls}, d.Args(args...)...)})
			}
			bundle := box.Bundle(t, harness.Sh("echo here"))
			result := lacking("run", "--bundle", bundle.Dir, bundle.ID)
			judge(t, "run", result, r.run)
			if r.run == "" && result.Stdout != "here\n" {
				t.Errorf("run prints:\n%v", result)
			}
			if lines, err := os.ReadFile(log); err != nil || !strings.Contains(string(lines), r.warns) {
				t.Errorf("run does not warn that %q: %s, %v", r.warns, lines, err)
			}
			if r.run != "*" {
				nothingLeft(t, d, before)
			}
			// A container of the whole kernel, in the hands of a runtime that has less.
			configure(t, "")
			up := d.Up(t, nil)
			judge(t, "exec", lacking("exec", up.ID, "true"), r.exec)
			if r := lacking("state", up.ID); r.Exit != 0 || !strings.Contains(r.Stdout, `"running"`) {
				t.Errorf("state:\n%v", r)
			}
			judge(t, "delete --force", lacking("delete", "--force", up.ID), r.force)
			d.Must(t, "delete", "--force", up.ID)
			d.Must(t, "delete", "--force", bundle.ID)
			nothingLeft(t, d, before)
		})
	}
}

// judge compares a result with a row's word: "*" is whatever the machine's cgroups make of it, as long as a failure has
// a reason.
func judge(t *testing.T, command string, r harness.Result, want string) {
	t.Helper()
	switch {
	case strings.Contains(r.Stderr, "goroutine ") || r.Exit != 0 && r.Stderr == "":
		t.Errorf("%s: no reason given:\n%v", command, r)
	case want == "*":
	case want == "" && r.Exit != 0:
		t.Errorf("%s: want success:\n%v", command, r)
	case want != "" && (r.Exit == 0 || !strings.Contains(r.Stderr, want)):
		t.Errorf("%s: want an error that says %q:\n%v", command, want, r)
	}
}

func configure(t *testing.T, text string) {
	t.Helper()
	file := "/etc/agentsafe/config.json" // what `agentsafectl config apply` writes
	if text == "" {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func nothingLeft(t *testing.T, d *harness.Bare, before harness.Snapshot) {
	t.Helper()
	if left := box.Leftovers(before); len(left) > 0 {
		t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
	}
	entries, err := os.ReadDir(d.Root)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left in the state directory: %s", e.Name())
	}
}

// TestMemoryPolicyWithout: an optional feature of the specification that this kernel lacks is refused when it is asked
// for, and otherwise nobody misses it.
func TestMemoryPolicyWithout(t *testing.T) {
	program, err := without()
	if err != nil {
		t.Fatal(err)
	}
	_, ours := harness.Peers(t)
	d := box.Bare(t, ours)
	for _, asked := range []bool{false, true} {
		bundle := box.Bundle(t, func(s *specs.Spec) {
			if asked {
				s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: "MPOL_BIND", Nodes: "0"}
			}
		})
		r := box.Run(t, harness.Cmd{Args: append([]string{program, "set_mempolicy"}, d.Args("run", "--bundle", bundle.Dir, bundle.ID)...)})
		if asked != (r.Exit != 0) || asked && !strings.Contains(r.Stderr, "linux.memoryPolicy") {
			t.Errorf("memory policy %v:\n%v", asked, r)
		}
	}
}
