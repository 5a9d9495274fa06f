package profiles

import (
	"crypto/sha256"
	"fmt"
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

// Every built-in profile on every engine's spec and both architectures: what it makes of the spec beside what agent makes
// of the same, as far as that is not the same on Docker's spec on amd64, whose plan is in builtin-NAME.plan. Agent's own
// plans are in ENGINE.plan for amd64; here is what arm64 changes. An empty section is the same.
func TestBuiltin_Variants(t *testing.T) {
	var b strings.Builder
	for _, name := range BuiltinNames() {
		if name == NameNone {
			continue // it makes nothing of a spec
		}
		same := beside(planLines(t, NameAgent, "docker", "amd64"), planLines(t, name, "docker", "amd64"))
		for _, engine := range []string{"docker", "containerd", "podman", "runc-spec"} {
			for _, arch := range []string{"amd64", "arm64"} {
				base := planLines(t, NameAgent, engine, arch)
				if name == NameAgent {
					base = planLines(t, NameAgent, engine, "amd64")
				}
				delta := beside(base, planLines(t, name, engine, arch))
				fmt.Fprintf(&b, "%s on %s, %s:\n", name, engine, arch)
				for _, l := range beside(same, delta) {
					fmt.Fprintf(&b, "  %s\n", l)
				}
			}
		}
	}
	golden(t, "variants.plan", b.String())
}

// beside lists what one list has and the other has not.
func beside(a, b []string) []string {
	var out []string
	for _, l := range a {
		if !slices.Contains(b, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			out = append(out, "+ "+l)
		}
	}
	return out
}

// planLines compiles a built-in profile for an engine's spec; the lists of calls, which can't be read in a line, count
// by their hash. A refusal is a plan, too.
func planLines(t *testing.T, profile, engine, arch string) []string {
	t.Helper()
	spec := loadSpec(t, engine)
	spec.Process.Env = append(spec.Process.Env, "HOME=/root", "NPM_TOKEN=x")
	host := hostOf(spec)
	host.Arch, host.Hidden, host.HiddenKnown = arch, []string{"/job/app/.env"}, true
	plan, err := PlanContainer(spec, builtin(t, profile), host)
	if err != nil {
		return []string{"refused: " + err.Error()}
	}
	text := plan.String()
	if i := strings.Index(text, "filter engine"); i >= 0 { // the engine's is its own, and no profile changes it
		text = text[:i] + text[strings.Index(text, "filter "+profile):]
	}
	lines := strings.Split(strings.Replace(text, "filter "+profile+", "+arch, "filter of the profile", 1), "\n")
	for i, l := range lines {
		const readable = 500
		if len(l) > readable {
			word, _, _ := strings.Cut(strings.TrimSpace(l), " ")
			lines[i] = fmt.Sprintf("%s ... %d bytes, sha256 %.12x", word, len(l), sha256.Sum256([]byte(l)))
		}
	}
	return lines
}
