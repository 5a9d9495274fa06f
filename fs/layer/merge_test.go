package layer

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// lines merges texts in which the task has changed the first line and the host the last, as show.Merge would.
func lines(base, task, host []byte) ([]byte, bool) {
	b, t, h := bytes.SplitAfter(base, []byte("\n")), bytes.SplitAfter(task, []byte("\n")), bytes.SplitAfter(host, []byte("\n"))
	if len(b) != len(t) || len(b) != len(h) {
		return nil, false
	}
	var out []byte
	for i := range b {
		switch {
		case bytes.Equal(b[i], t[i]):
			out = append(out, h[i]...)
		case bytes.Equal(b[i], h[i]) || bytes.Equal(t[i], h[i]):
			out = append(out, t[i]...)
		default:
			return nil, false
		}
	}
	return out, true
}

func TestPromoteMerges(t *testing.T) {
	b := newBench(t, map[string]string{"a": "1\n2\n3\n", "b": "1\n2\n3\n"})
	b.run(func(d string) { write(t, d, map[string]string{"a": "task\n2\n3\n", "b": "task\n2\n3\n"}) })
	tick()
	write(t, b.host, map[string]string{"a": "1\n2\nhost\n", "b": "host\n2\n3\n"})
	plan, err := b.l.PlanPromotion(nil)
	must(t, err)
	if len(plan.Conflicts()) != 2 {
		t.Fatalf("without a merge: %+v", plan.Items)
	}
	b.l.Merge = lines
	plan, err = b.l.PlanPromotion([]string{"a"})
	must(t, err)
	if len(plan.Items) != 1 || !plan.Items[0].Merged {
		t.Fatalf("%+v", plan.Items)
	}
	must(t, b.l.Promote(plan))
	if got := content(t, b.host)["a"]; got != "task\n2\nhost\n" {
		t.Errorf("merged: %q", got)
	}
	// The host's line is not the layer's: promoting once more must not take it away.
	plan, err = b.l.PlanPromotion([]string{"a"})
	must(t, err)
	if len(plan.Taken()) != 0 {
		t.Errorf("a second time: %+v", plan.Items)
	}
	plan, err = b.l.PlanPromotion([]string{"b"})
	must(t, err)
	if len(plan.Conflicts()) != 1 {
		t.Errorf("the same line: %+v", plan.Items)
	}
}

func TestMergeKnowsNoBase(t *testing.T) {
	b := newBench(t, map[string]string{"a": "1\n2\n3\n"})
	// The base changes the file, so that what a transaction finds is not what the host had.
	tick()
	must(t, os.WriteFile(b.view()+"/a", []byte("base\n2\n3\n"), 0o644))
	tick()
	b.run(func(d string) { write(t, d, map[string]string{"a": "base\ntask\n3\n"}) })
	tick()
	write(t, b.host, map[string]string{"a": "1\n2\nhost\n"})
	b.l.Merge = lines
	plan, err := b.l.PlanPromotion(nil)
	must(t, err)
	if len(plan.Conflicts()) != 1 {
		t.Errorf("%+v", plan.Items)
	}
}

func TestDigestAndChecks(t *testing.T) {
	b := newBench(t, start)
	b.run(func(d string) { write(t, d, map[string]string{"a": "2"}) })
	first, err := b.l.StateDigest()
	must(t, err)
	must(t, b.l.AddCheck(Check{Command: "make test", Digest: first}))
	if again, err := b.l.StateDigest(); err != nil || again != first || b.l.Passed("make test", first) == nil {
		t.Errorf("the same state: %s, then %s, %v", first, again, err)
	}
	if b.l.Passed("make", first) != nil {
		t.Error("another command has passed")
	}
	b.run(func(d string) { must(t, os.Chmod(d+"/a", 0o600)) })
	second, err := b.l.StateDigest()
	must(t, err)
	if second == first || b.l.Passed("make test", second) != nil {
		t.Error("a mode is not part of the digest")
	}
	must(t, b.l.AddCheck(Check{Command: "make test", Digest: first, Exit: 2}))
	if b.l.Passed("make test", first) != nil {
		t.Error("a check that has failed since counts as passed")
	}
	if !strings.HasPrefix(first, "sha256:") {
		t.Errorf("digest %q", first)
	}
}
