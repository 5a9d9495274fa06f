package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// event is one line of `go test -json`. Source: cmd/test2json and cmd/go's "go help buildjson".
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
}

// name identifies a test; an empty test stands for the package itself (its TestMain, its build).
type name struct{ pkg, test string }

type report struct {
	out     io.Writer
	result  map[name]string // pass, fail or skip
	output  map[name][]string
	parents map[name]bool
}

func newReport(out io.Writer) *report {
	return &report{out: out, result: map[name]string{}, output: map[name][]string{}, parents: map[name]bool{}}
}

func (r *report) add(e event) {
	n := name{e.Package, e.Test}
	switch e.Action {
	case "output":
		r.output[n] = append(r.output[n], e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "pass", "fail", "skip":
		r.result[n] = e.Action
		if i := strings.LastIndex(e.Test, "/"); i >= 0 {
			r.parents[name{e.Package, e.Test[:i]}] = true
		}
		r.finish(n, e)
	}
}

// finish prints what is of interest as soon as it is known, so that a run that hangs has told what it did.
func (r *report) finish(n name, e event) {
	if n.test == "" {
		if e.Action != "skip" { // a package without test files
			fmt.Fprintf(r.out, "%-4s %-64s %6.1fs\n", e.Action, n.pkg, e.Elapsed)
		}
		if e.Action == "fail" {
			r.print(n)
		}
		return
	}
	if e.Action == "fail" {
		fmt.Fprintf(r.out, "FAIL %s %s (%.1fs)\n", n.pkg, n.test, e.Elapsed)
		r.print(n)
	}
	if e.Action != "skip" {
		delete(r.output, n)
	}
}

func (r *report) print(n name) {
	for _, line := range r.output[n] {
		fmt.Fprint(r.out, "    ", line)
	}
}

// close prints the skips and the closing line, and judges the run.
func (r *report) close() error {
	passed, failed := 0, 0
	var skips, hidden []string
	failedIn := map[string]bool{}
	for n, result := range r.result {
		switch {
		case n.test == "" || r.parents[n] && result != "fail":
		case result == "pass":
			passed++
		case result == "fail":
			failedIn[n.pkg] = true
			if !r.parents[n] || !r.childFailed(n) {
				failed++
			}
		case result == "skip":
			reason := skipReason(r.output[n])
			line := fmt.Sprintf("skip %s %s: %s", n.pkg, n.test, reason)
			skips = append(skips, line)
			if !strings.HasPrefix(reason, "probe ") {
				hidden = append(hidden, line)
			}
		}
	}
	for n, result := range r.result {
		if n.test == "" && result == "fail" && !failedIn[n.pkg] {
			failed++ // the build, TestMain's check for leaks, a panic or the time limit
		}
	}
	slices.Sort(skips)
	for _, line := range skips {
		fmt.Fprintln(r.out, line)
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", passed, failed, len(skips))
	switch {
	case failed > 0:
		return fmt.Errorf("%d tests failed", failed)
	case len(hidden) > 0:
		return fmt.Errorf("%d tests were skipped without naming a probe", len(hidden))
	case passed == 0:
		return fmt.Errorf("no test ran")
	}
	return nil
}

func (r *report) childFailed(parent name) bool {
	for n, result := range r.result {
		if result == "fail" && n.pkg == parent.pkg && strings.HasPrefix(n.test, parent.test+"/") {
			return true
		}
	}
	return false
}

// skipReason finds the message of t.Skip, which the testing package prints as "    file.go:12: message".
func skipReason(output []string) string {
	at := regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)`)
	for _, line := range slices.Backward(output) {
		if m := at.FindStringSubmatch(line); m != nil {
			return m[1]
		}
	}
	return "no reason given"
}
