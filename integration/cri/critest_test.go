package cri

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// outcome is what critest says of its cases: "passed", "failed", "skipped".
type outcome map[string]string

func (o outcome) with(state string) []string {
	var out []string
	for name, s := range o {
		if s == state {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// TestCritest runs the conformance suite of CRI: what passes with runc has to pass with our shim and the profile none,
// and what fails with the profile agent has to be a promise of ours, named in docs/CRI.md.
func TestCritest(t *testing.T) {
	if os.Getenv("AGENTSAFE_TEST_LONG") == "" {
		t.Skip("probe AGENTSAFE_TEST_LONG: not set, and the suite takes minutes for each of three handlers")
	}
	runc := critest(t, "runc")
	if n := len(runc.with("passed")); n < 90 {
		t.Fatalf("only %d cases pass with runc: the machine, not the runtime, is what fails", n)
	}
	none := critest(t, noneByName)
	for _, name := range runc.with("passed") {
		if none[name] != "passed" {
			t.Errorf("%s passes with runc, and with our shim and the profile none it is %q", name, none[name])
		}
	}
	documented := differences(t)
	agent := critest(t, handler)
	for _, name := range runc.with("passed") {
		if agent[name] != "passed" && !documented[name] {
			t.Errorf("%s passes with runc, is %q under the profile agent, and docs/CRI.md does not name it", name, agent[name])
		}
	}
	for name := range documented {
		if agent[name] != "failed" {
			t.Errorf("docs/CRI.md names %q, which is %q", name, agent[name])
		}
	}
}

// differences are the cases in the first column of the table of docs/CRI.md.
func differences(t *testing.T) map[string]bool {
	t.Helper()
	repo, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(repo, "docs", "CRI.md"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\[k8s\\.io\\] [^`]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		out[m[1]] = true
	}
	if len(out) == 0 {
		t.Error("docs/CRI.md has no table of differences")
	}
	return out
}

// critest runs the suite under one handler.
func critest(t *testing.T, handler string) outcome {
	t.Helper()
	dir := box.TempDir(t)
	report := filepath.Join(dir, "report.xml")
	const most = 30 * time.Minute
	r := box.Run(t, harness.Cmd{
		Args: []string{
			filepath.Join(engine.tools, "critest"), "-runtime-endpoint", "unix://" + socket, "-image-endpoint", "unix://" + socket,
			"-runtime-handler", handler, "-nri-socket", nriSocket, "-ginkgo.no-color", "-ginkgo.junit-report", report, "-ginkgo.seed", "1",
		},
		Dir: dir, Timeout: most,
	})
	if keep := os.Getenv("AGENTSAFE_TEST_CRITEST_LOGS"); keep != "" {
		if err := os.WriteFile(filepath.Join(keep, handler+".log"), []byte(r.Stdout+r.Stderr), 0o644); err != nil {
			t.Error(err)
		}
	}
	unmountLeftovers(t)
	data, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%v", err, r)
	}
	out := parseJUnit(t, data)
	t.Logf("critest, handler %s: %d passed, %d failed, %d skipped in %v; failed: %s", handler, len(out.with("passed")),
		len(out.with("failed")), len(out.with("skipped")), r.Took.Round(time.Second), strings.Join(out.with("failed"), "; "))
	return out
}

// unmountLeftovers takes away what the suite's own mount propagation cases have mounted on the host, and leave when their
// container is refused.
func unmountLeftovers(t *testing.T) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], filepath.Join(os.TempDir(), "test")) {
			if err := unix.Unmount(f[4], unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	}
}

func parseJUnit(t *testing.T, data []byte) outcome {
	t.Helper()
	var report struct {
		Suites []struct {
			Cases []struct {
				Name   string `xml:"name,attr"`
				Status string `xml:"status,attr"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	out := outcome{}
	for _, s := range report.Suites {
		for _, c := range s.Cases {
			name, isCase := strings.CutPrefix(c.Name, "[It] ")
			if !isCase {
				continue
			}
			state := c.Status
			if state == "panicked" || state == "timedout" || state == "interrupted" || state == "aborted" {
				state = "failed"
			}
			if state == "pending" {
				state = "skipped"
			}
			if _, twice := out[name]; twice {
				name = fmt.Sprintf("%s, again", name)
			}
			out[name] = state
		}
	}
	return out
}
