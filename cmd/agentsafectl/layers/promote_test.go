package layers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// TestWritePlan_ManyLeft: what is left out below one execution surface is told in a few lines, and other paths one by one.
func TestWritePlan_ManyLeft(t *testing.T) {
	item := func(path, left string) layer.Item {
		return layer.Item{Workspace: "/job", Change: tree.Change{Path: path, Op: tree.Add, Kind: tree.File}, Left: left}
	}
	plan := &layer.PromotionPlan{Items: []layer.Item{item("a", "")}}
	for n := range 40 {
		plan.Items = append(plan.Items, item(fmt.Sprintf("sub/.git/objects/%02d", n), "git runs"))
		plan.Items = append(plan.Items, item(fmt.Sprintf("dev%d", n), "a device"))
	}
	for n := range 4 {
		plan.Items = append(plan.Items, item(fmt.Sprintf(".vscode/%d", n), "the editor runs"))
	}
	var out strings.Builder
	if err := writePlan(&out, plan, true); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	for text, want := range map[string]int{
		"git runs": 4, "/job/sub/.git: 37 more: git runs (--json lists them)": 1, "a device": 40, "the editor runs": 4, "would write": 1, "1 paths, 84 left out": 1,
	} {
		if n := strings.Count(got, text); n != want {
			t.Errorf("%q stands there %d times, want %d:\n%s", text, n, want, got)
		}
	}
}
