package profileview

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agentsafe/agentsafe/profiles"
)

// Lint lists what is valid in a profile and looks wrong: grants that change nothing, grants that cancel each other, and
// grants so wide that the rest means little. arch is GOARCH.
func Lint(p *profiles.Profile, arch string) []string {
	var out []string
	note := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, set := range []struct {
		field string
		paths []string
	}{{"read", p.Filesystem.Read}, {"execute", p.Filesystem.Execute}, {"write", p.Filesystem.Write}} {
		for i, a := range set.paths {
			for k, b := range set.paths {
				if i != k && (b == "/" || strings.HasPrefix(a, strings.TrimSuffix(b, "/")+"/")) {
					note("filesystem.%s: %s is covered by %s", set.field, a, b)
				}
			}
		}
	}
	for _, x := range p.Filesystem.Execute {
		if !readable(p, x) {
			note("filesystem.execute: %s can't be read, and few programs start from files that can't (scripts never)", x)
		}
	}
	lintSyscalls(p, arch, note)
	for _, name := range p.Environment.Allow {
		if slices.Contains(p.Environment.Deny, name) {
			note("environment: %s is in allow and in deny, so it is removed", name)
		}
	}
	lintWide(p, note)
	return out
}

func readable(p *profiles.Profile, file string) bool {
	return profiles.ExplainPath(p, file)[0].Verdict == profiles.VerdictAllowed
}

func lintSyscalls(p *profiles.Profile, arch string, note func(string, ...any)) {
	plain := *p
	plain.Syscalls = profiles.Syscalls{Packs: p.Syscalls.Packs}
	for _, name := range p.Syscalls.Allow {
		switch a := profiles.ExplainSyscall(&plain, name, arch); {
		case slices.Contains(p.Syscalls.Deny, name):
			note("syscalls: %s is in allow and in deny, so it is refused", name)
		case a.Verdict == profiles.VerdictAllowed:
			note("syscalls.allow: %s is allowed without it (%s)", name, a.Rule)
		case a.Verdict == profiles.VerdictDepends:
			note("syscalls.allow: %s lifts the rules on its arguments (%s)", name, a.Why)
		}
	}
	for _, name := range p.Syscalls.Deny {
		if a := profiles.ExplainSyscall(&plain, name, arch); a.Verdict == profiles.VerdictRefused {
			note("syscalls.deny: %s is refused without it (%s)", name, a.Rule)
		}
	}
}

func lintWide(p *profiles.Profile, note func(string, ...any)) {
	if p.HasPack(profiles.PackContainers) {
		note("syscalls.packs: containers opens mounts and namespaces, and the rules on files are not enforced with it")
	}
	if p.HasPack(profiles.PackSudo) {
		note("syscalls.packs: sudo lets set-id programs of the image get their rights")
	}
	if len(p.Filesystem.Hide) > 0 && slices.Contains(p.Capabilities, "CAP_SYS_ADMIN") {
		note("filesystem.hide: a task with CAP_SYS_ADMIN can look below what hides")
	}
	for _, r := range p.Network.Allow {
		if strings.HasPrefix(r, "*:") || r == "*" {
			note("network.allow: %s is every host; the other rules add nothing to it", r)
		}
	}
	if t := p.Trust; t.UntrustedInput && t.Secrets && t.ExternalWrite {
		note("trust: all three are on (the parent's, if the file does not say), so a task with secrets is noted and not refused")
	}
}
