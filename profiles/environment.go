package profiles

import (
	"maps"
	"slices"
	"strings"
)

// planEnvironment applies the profile's rules on variables: what Allow does not keep or Deny names is removed, then Set
// is added. A variable of the spec's own with the name of a set one is replaced.
func (p *Profile) planEnvironment(in []string) ([]string, []Note) {
	e := &p.Environment
	if len(e.Allow)+len(e.Deny)+len(e.Set) == 0 {
		return in, nil
	}
	var out, cut []string
	for _, entry := range in {
		name, _, _ := strings.Cut(entry, "=")
		if _, set := e.Set[name]; set {
			continue
		}
		if len(e.Allow) > 0 && !matchAny(e.Allow, name) || matchAny(e.Deny, name) {
			cut = append(cut, name)
			continue
		}
		out = append(out, entry)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Set)) {
		out = append(out, name+"="+e.Set[name])
	}
	if len(cut) == 0 {
		return out, nil
	}
	return out, []Note{{Rule: "environment", Text: "removed " + strings.Join(compact(cut), " ")}}
}
