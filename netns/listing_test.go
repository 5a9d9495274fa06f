package netns

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// nft reads what String prints and lists it exactly as it lists what Install
// made: the text that is reviewed and the bytes that are sent are the same
// policy, by the word of a program that isn't ours.
func TestListingMatchesText(t *testing.T) {
	if !isolated(t) {
		return
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("probe nft: " + err.Error())
	}
	for name, p := range goldenPolicies() {
		ours, theirs := newSpace(t), newSpace(t)
		rules := ours.install(p)
		theirs.do(func() error {
			cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
			cmd.Stdin = strings.NewReader(rules.String())
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: nft doesn't load the text: %s", name, out)
			}
			return nil
		})
		const list = "nft list ruleset"
		want := theirs.run(list)
		for _, again := range []string{"first", "second"} {
			if got := ours.run(list); got != want {
				t.Errorf("%s, %s install: kernel has\n%s\ntext is\n%s", name, again, got, want)
			}
			ours.install(p)
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 100 {
		if ok() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s", what)
}
