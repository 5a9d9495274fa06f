package conformance

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var update = flag.Bool("update", false, "write docs/CONFORMANCE.md")

// differences are programs that runc passes and agentsafe does not, each with the reason.
func differences() map[string]string {
	return map[string]string{}
}

// TestValidationPrograms holds agentsafe to what runc passes on this machine.
func TestValidationPrograms(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("probe GOARCH: runtime-tools has a root file system for amd64 and 386 alone")
	}
	lockMachine(t)
	tools, err := toolsDir()
	if err != nil {
		t.Fatal(err)
	}
	names := programs(t, tools)
	known, recorded := differences(), recorded(t)
	runtimes := []string{"runc", "crun", "agentsafe"}
	if recorded != nil && !*update && os.Getenv("AGENTSAFE_TEST_LONG") == "" {
		// What runc does was measured on such a machine: docs/CONFORMANCE.md tells.
		runtimes = []string{"agentsafe"}
	}
	results := validateAll(t, tools, names, runtimes)
	judgeAgain(t, tools, recorded, results)
	for _, name := range names {
		if len(runtimes) == 1 {
			results[name]["runc"], results[name]["crun"] = recorded[name]["runc"], recorded[name]["crun"]
		}
		runc, ours := results[name]["runc"], results[name]["agentsafe"]
		reason, expected := known[name]
		switch {
		case runc.pass && !ours.pass && !expected:
			t.Errorf("%s: runc passes, agentsafe does not: %s", name, ours.why)
		case expected && ours.pass:
			t.Errorf("%s passes, so this is no longer a difference: %s", name, reason)
		}
	}
	t.Log(counts(results))
	want := document(t, names, results)
	switch {
	case *update:
		if err := os.WriteFile(documentFile(t), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	case recorded == nil:
		t.Logf("docs/CONFORMANCE.md was measured on another kind of machine than this: %s", measuredOn(t))
	case want != read(t, documentFile(t)):
		t.Errorf("docs/CONFORMANCE.md does not say what was measured, write it with -update:\n%s", want)
	}
}

// recorded reads the table of docs/CONFORMANCE.md; it returns nil if that was measured on another kind of machine:
// another kernel, version of a peer or set of privileges gives other results.
func recorded(t *testing.T) map[string]map[string]verdict {
	t.Helper()
	text := read(t, documentFile(t))
	if !strings.Contains(text, measuredOn(t)) {
		return nil
	}
	out := map[string]map[string]verdict{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\w+) \| (pass|-) \| (pass|-) \| (?:pass|-) \|$`).FindAllStringSubmatch(text, -1) {
		out[row[1]] = map[string]verdict{"runc": {pass: row[2] == "pass"}, "crun": {pass: row[3] == "pass"}}
	}
	return out
}

func documentFile(t *testing.T) string {
	t.Helper()
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "docs", "CONFORMANCE.md")
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func counts(results map[string]map[string]verdict) string {
	n := map[string]int{}
	for _, r := range results {
		for who, v := range r {
			if v.pass {
				n[who]++
			}
		}
	}
	return fmt.Sprintf("of %d programs pass: runc %d, crun %d, agentsafe %d", len(results), n["runc"], n["crun"], n["agentsafe"])
}

// measuredOn names what the results depend on.
func measuredOn(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	release := regexp.MustCompile(`^\d+\.\d+`).FindString(unix.ByteSliceToString(u.Release[:]))
	cgroups := "cgroup v1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		cgroups = "cgroup v2"
	}
	lsm, err := os.ReadFile("/sys/kernel/security/lsm")
	if err != nil {
		lsm = []byte("unknown")
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	caps := regexp.MustCompile(`CapBnd:\s*(\w+)`).FindStringSubmatch(string(status))[1]
	return fmt.Sprintf("Linux %s, %s, security modules %s, capabilities %s, %s, %s",
		release, cgroups, strings.TrimSpace(string(lsm)), caps, versionOf(t, "runc"), versionOf(t, "crun"))
}

func versionOf(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command(name, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.Replace(line, " version ", " ", 1)
}

func document(t *testing.T, names []string, results map[string]map[string]verdict) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# Conformance

The validation programs of [runtime-tools](https://github.com/opencontainers/runtime-tools), run side by side by
` + "`integration/conformance`" + `, which writes this page (` + "`go test ./integration/conformance -update`" + `) and fails if
agentsafe, under the profile ` + "`none`" + `, does not pass what runc passes, except for the differences below. A program
passes if it ends with status 0 and reports neither a failed point nor an error; that is stricter than the exit status
alone, which most failures leave at 0.

`)
	fmt.Fprintf(&b, "Measured on: %s.\n\n", measuredOn(t))
	fmt.Fprintf(&b, "**Result: %s.**\n\n", counts(results))
	b.WriteString("| program | runc | crun | agentsafe |\n| --- | --- | --- | --- |\n")
	mark := func(v verdict) string {
		if v.pass {
			return "pass"
		}
		return "-"
	}
	var nobody []string
	for _, name := range names {
		r := results[name]
		if !r["runc"].pass && !r["crun"].pass && !r["agentsafe"].pass {
			nobody = append(nobody, "`"+name+"`")
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, mark(r["runc"]), mark(r["crun"]), mark(r["agentsafe"]))
	}
	fmt.Fprintf(&b, "\nOn this machine no runtime passes the other %d, for want of a controller, a security module or a capability, or\n"+
		"because the program holds to an older text of the specification: %s.\n", len(nobody), strings.Join(nobody, ", "))
	b.WriteString("\n## Differences from runc\n\n")
	known := differences()
	if len(known) == 0 {
		b.WriteString("None: what runc passes, agentsafe passes.\n")
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		fmt.Fprintf(&b, "- `%s`: %s.\n", name, known[name])
	}
	b.WriteString("\n`" + undecided + "` is left out: whether a hook's words come after those of the process is the scheduler's to say.\n")
	b.WriteString("`poststart_fail` holds to the rule before runtime-spec 1.3: since then a failing poststart hook is an error.\n")
	b.WriteString(checklistText())
	return b.String()
}
