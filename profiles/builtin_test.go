package profiles

import (
	"slices"
	"strings"
	"testing"
)

// Every built-in profile, compiled for Docker's spec with a workspace and a variable that is a secret.
func TestBuiltin_Golden(t *testing.T) {
	for _, name := range BuiltinNames() {
		if name == NameNone || name == NameAgent {
			continue // elsewhere
		}
		t.Run(name, func(t *testing.T) {
			spec := loadSpec(t, "docker")
			spec.Process.Env = append(spec.Process.Env, "HOME=/root", "NPM_TOKEN=x")
			host := hostOf(spec)
			host.Hidden, host.HiddenKnown = []string{"/job/app/.env"}, true
			plan, err := PlanContainer(spec, builtin(t, name), host)
			if err != nil {
				t.Fatal(err)
			}
			text := plan.String()
			if i := strings.Index(text, "filter "); i >= 0 { // the lists of calls are in docker.plan
				text = text[:i] + text[strings.LastIndex(text, "  default: "):]
			}
			golden(t, "builtin-"+name+".plan", text+"environment "+strings.Join(plan.Spec.Process.Env, " ")+"\n")
		})
	}
}

func TestBuiltin_Arm64(t *testing.T) {
	spec := loadSpec(t, "docker")
	host := hostOf(spec)
	host.Arch = "arm64"
	plan, err := PlanContainer(spec, builtin(t, NameAgent), host)
	if err != nil {
		t.Fatal(err)
	}
	ours := plan.Seccomp[len(plan.Seccomp)-1]
	golden(t, "agent-arm64.filter", ours.String())
}

// All but what this version does not enforce yet is valid, and the order is the one that people expect.
func TestBuiltin_Valid(t *testing.T) {
	for _, name := range BuiltinNames() {
		p := builtin(t, name)
		if err := p.Validate(); err != nil && !strings.Contains(err.Error(), "not enforced by this version") {
			t.Errorf("%s: %v", name, err)
		}
		if p.Name != name || p.Description == "" {
			t.Errorf("%s: %+v", name, p)
		}
	}
	for _, pair := range [][2]string{{"offline", "agent"}, {"lint", "offline"}, {"test", "agent"}, {"build", "agent"}, {"lint", "test"}, {"agent", "none"}, {"test", "build"}, {"research", "agent"}} {
		if more := Excess(builtin(t, pair[0]), builtin(t, pair[1])); more != nil {
			t.Errorf("%s grants more than %s: %v", pair[0], pair[1], more)
		}
		if LessOrEqual(builtin(t, pair[1]), builtin(t, pair[0])) {
			t.Errorf("%s is not tighter than %s", pair[0], pair[1])
		}
	}
	// A table that shares slices between rows would let one profile change another.
	a, b := builtin(t, "claude-code"), builtin(t, "claude-code")
	a.Network.RuleSets[0], a.Environment.Deny[0] = "changed", "changed"
	if slices.Contains(b.Network.RuleSets, "changed") || slices.Contains(builtin(t, "build").Environment.Deny, "changed") {
		t.Error("two copies share their lists")
	}
}
