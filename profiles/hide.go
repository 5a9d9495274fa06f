package profiles

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// validateHide accepts a path as the other lists have it, or a pattern: components of path.Match, and "**" for any
// number of components. A pattern that starts with "**" is looked for in the bind mounts.
func validateHide(unsafePattern string) error {
	if !isPattern(unsafePattern) {
		if unsafePattern == "/" {
			return fmt.Errorf("path %q would hide everything", unsafePattern)
		}
		return validatePath(unsafePattern)
	}
	rest := unsafePattern
	for _, v := range []string{"$HOME", "$WORKSPACE", "~"} {
		if after, ok := strings.CutPrefix(rest, v); ok {
			rest = after
			break
		}
	}
	if after, ok := strings.CutPrefix(rest, "**/"); ok && rest == unsafePattern {
		rest = "/" + after
	}
	switch {
	case rest == "" || rest[0] != '/' || path.Clean(rest) != rest || strings.ContainsAny(rest, "$\x00"):
		return fmt.Errorf("pattern %q: want an absolute, clean one, or one that starts with **/", unsafePattern)
	case strings.Count(unsafePattern, "**") > 2:
		return fmt.Errorf("pattern %q: more than two **", unsafePattern)
	case strings.Trim(path.Base(rest), "*?") == "":
		return fmt.Errorf("pattern %q: its last component matches everything", unsafePattern)
	}
	for c := range strings.SplitSeq(rest, "/") {
		if _, err := path.Match(c, ""); err != nil || strings.Contains(c, "**") && c != "**" {
			return fmt.Errorf("pattern %q: component %q is not a pattern", unsafePattern, c)
		}
	}
	return nil
}

func isPattern(s string) bool { return strings.ContainsAny(s, "*?[") }

// HidePatterns returns the patterns among what the profile hides, with variables expanded for a spec's process; one
// whose variable is not set hides nothing and is left out. Whoever gathers facts looks them up: [HostFacts.Hidden].
func (p *Profile) HidePatterns(vars Variables) []string {
	var out []string
	for _, h := range p.Filesystem.Hide {
		if !isPattern(h) {
			continue
		}
		if expanded, ok := vars.expand(h); ok {
			out = append(out, expanded)
		}
	}
	return out
}

// MatchHide reports whether a path is what a pattern hides, and whether something below it can be. The path is below
// the place where a pattern that starts with "**" is looked for, and absolute else; it starts with a slash either way.
func MatchHide(pattern, p string) (hides, below bool) {
	return matchComponents(strings.Split(strings.TrimPrefix(pattern, "/"), "/"), strings.Split(strings.Trim(p, "/"), "/"))
}

func matchComponents(pattern, p []string) (hides, below bool) {
	switch {
	case len(pattern) == 0:
		return len(p) == 0, false
	case pattern[0] == "**":
		hides, _ = matchComponents(pattern[1:], p)
		for i := 1; i <= len(p) && !hides; i++ {
			hides, _ = matchComponents(pattern[1:], p[i:])
		}
		return hides, true
	case len(p) == 0 || len(p) == 1 && p[0] == "":
		return false, true
	}
	if ok, err := path.Match(pattern[0], p[0]); !ok || err != nil {
		return false, false
	}
	return matchComponents(pattern[1:], p[1:])
}

// planHide adds what the profile hides to the masked paths.
func (p *Profile) planHide(have []string, vars Variables, host HostFacts) ([]string, []Note, error) {
	if len(p.Filesystem.Hide) == 0 {
		return have, nil, nil
	}
	if len(p.HidePatterns(vars)) > 0 && !host.HiddenKnown {
		return nil, nil, fmt.Errorf("plan filesystem.hide: no facts about %v", p.HidePatterns(vars))
	}
	out := slices.Clone(have)
	var notes []Note
	add := func(name string) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	for _, h := range p.Filesystem.Hide {
		if isPattern(h) {
			continue
		}
		expanded, ok := vars.expand(h)
		if !ok {
			notes = append(notes, Note{Rule: "filesystem.hide", Text: h + " hides nothing here: the variable is not set, or leads to a directory of the system"})
			continue
		}
		add(expanded)
	}
	for _, h := range host.Hidden {
		add(h)
	}
	if len(host.Hidden) > 0 {
		notes = append(notes, Note{Rule: "filesystem.hide", Text: fmt.Sprintf("%d paths by pattern", len(host.Hidden)), Routine: true})
	}
	return out, notes, nil
}
