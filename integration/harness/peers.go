package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// Peer is a runtime in a comparison.
type Peer struct {
	// Name is what engines call it: "runc" or "agentsafe".
	Name string
	// Path is the program.
	Path string
}

// RuntimePath is the program under test: AGENTSAFE_TEST_RUNTIME, or bin/agentsafe of this repository.
func RuntimePath() (string, error) {
	path := os.Getenv("AGENTSAFE_TEST_RUNTIME")
	if path == "" {
		root, err := RepoRoot()
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, "bin", "agentsafe")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("runtime under test: %w (run make first)", err)
	}
	return filepath.Abs(path)
}

// RepoRoot is the directory of go.mod above the current one.
func RepoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no go.mod above the current directory")
}

// Peers returns runc and the runtime under test. It fails the test if one is missing.
func Peers(t testing.TB) (runc, agentsafe Peer) {
	t.Helper()
	path, err := exec.LookPath("runc")
	if err != nil {
		t.Fatal(err)
	}
	runtime, err := RuntimePath()
	if err != nil {
		t.Fatal(err)
	}
	return Peer{"runc", path}, Peer{"agentsafe", runtime}
}

// SideBySide does the same under runc and under the runtime under test, in subtests of these names, and returns what
// came of it. It compares nothing if one of the two has failed already.
func SideBySide(t *testing.T, do func(t *testing.T, p Peer) Result, compare ...Comparison) (runc, agentsafe Result) {
	t.Helper()
	r, a := Peers(t)
	ok := t.Run(r.Name, func(t *testing.T) { runc = do(t, r) })
	ok = t.Run(a.Name, func(t *testing.T) { agentsafe = do(t, a) }) && ok
	if ok {
		Compare(t, runc, agentsafe, compare...)
	}
	return runc, agentsafe
}

// Comparison looks at one aspect of two results and returns what differs, or "".
type Comparison func(want, got Result) string

// Compare applies the comparisons, [Same] if there are none, to runc's result and ours.
func Compare(t testing.TB, want, got Result, compare ...Comparison) {
	t.Helper()
	if len(compare) == 0 {
		compare = []Comparison{Same}
	}
	for _, c := range compare {
		if diff := c(want, got); diff != "" {
			t.Errorf("%s\n--- runc\n%v\n--- agentsafe\n%v", diff, want, got)
		}
	}
}

// Same wants the same exit code, the same output, and errors of the same shape.
func Same(want, got Result) string {
	for _, c := range []Comparison{SameExit, SameOutput, SameErrorShape} {
		if diff := c(want, got); diff != "" {
			return diff
		}
	}
	return ""
}

// SameExit compares exit codes.
func SameExit(want, got Result) string {
	if want.Exit != got.Exit {
		return fmt.Sprintf("exit code %d, want %d", got.Exit, want.Exit)
	}
	return ""
}

// SameOutput compares standard output after [Neutral].
func SameOutput(want, got Result) string {
	if w, g := Neutral(want.Stdout), Neutral(got.Stdout); w != g {
		return fmt.Sprintf("standard output %q, want %q", g, w)
	}
	return ""
}

// SameErrorShape wants both or neither to have written to standard error: the words are ours, and tests that care
// about them name what they want with [ErrorHas].
func SameErrorShape(want, got Result) string {
	if (want.Stderr == "") != (got.Stderr == "") {
		return fmt.Sprintf("standard error %q, want %q", got.Stderr, want.Stderr)
	}
	return ""
}

// ErrorHas wants both standard errors (or terminals) to match each expression.
func ErrorHas(expressions ...string) Comparison {
	return func(want, got Result) string {
		for _, e := range expressions {
			re := regexp.MustCompile(e)
			for _, r := range []Result{want, got} {
				if !re.MatchString(r.Stderr) && !re.MatchString(r.Stdout) {
					return fmt.Sprintf("%v: errors do not match %q", r.Args, e)
				}
			}
		}
		return ""
	}
}

// Exits wants both to end with code.
func Exits(code int) Comparison {
	return func(want, got Result) string {
		for _, r := range []Result{want, got} {
			if r.Exit != code {
				return fmt.Sprintf("%v: exit code %d, want %d", r.Args, r.Exit, code)
			}
		}
		return ""
	}
}

// Prints wants both standard outputs to match expression.
func Prints(expression string) Comparison {
	return func(want, got Result) string {
		re := regexp.MustCompile(expression)
		for _, r := range []Result{want, got} {
			if !re.MatchString(r.Stdout) {
				return fmt.Sprintf("%v: output does not match %q", r.Args, expression)
			}
		}
		return ""
	}
}

// All is every comparison of a list, as one.
func All(list ...Comparison) Comparison {
	return func(want, got Result) string {
		for _, c := range list {
			if diff := c(want, got); diff != "" {
				return diff
			}
		}
		return ""
	}
}

// Neutral replaces what differs from run to run and from runtime to runtime: ids, times, the runtime's name.
func Neutral(s string) string {
	for _, r := range neutral() {
		s = r.re.ReplaceAllString(s, r.by)
	}
	return s
}

type replacement struct {
	re *regexp.Regexp
	by string
}

func neutral() []replacement {
	return []replacement{
		{regexp.MustCompile(`astest-\d+(-\d+)?`), "ID"},
		{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "HASH"},
		{regexp.MustCompile(`\b[0-9a-f]{12}\b`), "HASH"},
		{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?`), "TIME"},
		{regexp.MustCompile(`\b(runc|agentsafe)\b`), "RUNTIME"},
	}
}
