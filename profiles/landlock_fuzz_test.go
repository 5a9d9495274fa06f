package profiles

import (
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// FuzzPlanLandlock: for whatever paths a profile lists and whatever a spec's environment expands them to, a ruleset is an
// error or handles all that it grants, grants no write to a path that the profile does not list for writing, and says
// nothing about paths that are not absolute.
func FuzzPlanLandlock(f *testing.F) {
	f.Add("/usr", "/tmp\n$HOME", "HOME=/root", "/work", 7)
	f.Add("/", "$WORKSPACE", "HOME=../..", "/../etc", 1)
	f.Add("/a\x00b\n//", "/a/../../b\n~", "HOME=", "", 3)
	f.Add("", "$HOME/../x\n${HOME}", "HOME=/\n", "/", 0)
	f.Fuzz(func(t *testing.T, read, write, env, workspace string, abi int) {
		p := agent()
		p.Filesystem.Read, p.Filesystem.Execute = strings.Split(read, "\n"), []string{"/usr"}
		p.Filesystem.Write = strings.Split(write, "\n")
		if p.Validate() != nil {
			return
		}
		s := &specs.Spec{Process: &specs.Process{Env: []string{env}, Cwd: workspace}, Linux: &specs.Linux{}}
		plan, _, err := PlanLandlock(s, p, HostFacts{LandlockABI: abi})
		if err != nil || plan == nil {
			return
		}
		for _, r := range plan.Rules {
			if r.Access&^plan.HandledFS != 0 {
				t.Errorf("%q grants %#x, of which %#x is not handled", r.Path, r.Access, r.Access&^plan.HandledFS)
			}
			if !strings.HasPrefix(r.Path, "/") || strings.ContainsRune(r.Path, 0) || strings.Contains(r.Path+"/", "/../") {
				t.Errorf("rule for %q", r.Path)
			}
		}
		if text := plan.String(); text == "" {
			t.Error("a ruleset that can't be printed")
		}
	})
}
