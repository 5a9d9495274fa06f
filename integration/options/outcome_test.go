package options

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// row is an option or operation of an engine.
type row struct {
	engine, option string
	// do uses it under a runtime and returns what came of it.
	do func(t *testing.T, runtime string) harness.Result
	// prints is what the output must match under runc, so that a row is known to have tested something.
	prints string
	// fails is why it is not to be had under runc either, here or anywhere, in the words of the page; prints then is what the
	// engine says.
	fails string
}

// failing makes of a row one that fails under runc, with the reason and what the engine says.
func failing(r row, why, prints string) row {
	r.fails, r.prints = why, prints
	return r
}

// The runtimes of a row, in this order.
const (
	runc  = "runc"
	none  = "agentsafe-none"
	agent = "agentsafe"
)

// outcomes are what became of a row under the profiles none and agent.
type outcomes struct{ none, agent string }

// judge runs a row under all runtimes.
func (r *row) judge(t *testing.T) outcomes {
	t.Helper()
	want := r.do(t, runc)
	if !regexp.MustCompile(r.prints).MatchString(want.Stdout + want.Stderr) {
		t.Errorf("under runc the output does not match %q\n%v", r.prints, want)
	}
	plain, hardened := r.do(t, none), r.do(t, agent)
	o := outcomes{none: "same", agent: "same"}
	// 125 to 127 are the engines' own words for "not started".
	if notStarted := want.Exit >= 125 && want.Exit <= 127; notStarted != (r.fails != "") {
		t.Errorf("under runc exit %d; the reason that the row gives for a failure: %q\n%v", want.Exit, r.fails, want)
	} else if notStarted {
		o = outcomes{none: "fails as under runc: " + r.fails, agent: "fails as under runc"}
	}
	if !same(want, plain) {
		t.Errorf("not as under runc with the profile none\n--- runc\n%v\n--- none\n%v", want, plain)
		o.none = "differs"
	}
	switch {
	case refusal(hardened) != "":
		o.agent = "refused: " + refusal(hardened)
	case same(want, hardened):
	default:
		t.Errorf("not as under runc with the default profile, and not refused\n--- runc\n%v\n--- agent\n%v", want, hardened)
		o.agent = "differs"
	}
	return o
}

func same(a, b harness.Result) bool {
	return a.Exit == b.Exit && harness.Neutral(a.Stdout) == harness.Neutral(b.Stdout)
}

// refusal is what agentsafe refused by a rule of the profile, "" if it did not. The message says what allows it, too.
func refusal(r harness.Result) string {
	m := regexp.MustCompile(`refused: (.*?): profile \\?"agent\\?": .*?; allowed by `).FindStringSubmatch(r.Stderr + r.Stdout)
	if m == nil {
		return ""
	}
	what, _, _ := strings.Cut(m[1], ", the socket of ") // and of which process: another in each run
	return harness.Neutral(strings.ReplaceAll(what, `\"`, `"`))
}

// result makes a Result of lines.
func result(lines ...any) harness.Result {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintln(&b, l)
	}
	return harness.Result{Stdout: b.String()}
}
