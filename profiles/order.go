package profiles

import (
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/netns/egress"
)

// A grant is a set of things, written as a list of elements that each stand for themselves and all that they cover: a
// path and what is below it, a prefix and its addresses, a rule and the names that it matches. "Covers" is a partial
// order in which two elements have at most one largest element below both. So what two lists have in common is the
// list of what their elements have in common, pair by pair, and lists form a lattice.

// elements is the order of one kind of element.
type elements[T any] struct {
	// covers reports whether all of b is in a.
	covers func(a, b T) bool
	// common returns the largest element that both cover.
	common func(a, b T) (T, bool)
	// compare orders elements for canonical lists.
	compare func(a, b T) int
}

// canonical returns the list sorted, without what others in it cover.
func (e elements[T]) canonical(list []T) []T {
	var out []T
	for i, a := range list {
		covered := false
		for k, b := range list {
			// Of two that are equal the first stays.
			if k != i && e.covers(b, a) && (!e.covers(a, b) || k < i) {
				covered = true
				break
			}
		}
		if !covered {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, e.compare)
	return out
}

// meet returns what both lists grant.
func (e elements[T]) meet(a, b []T) []T {
	var out []T
	for _, x := range a {
		for _, y := range b {
			if c, ok := e.common(x, y); ok {
				out = append(out, c)
			}
		}
	}
	return e.canonical(out)
}

// within reports whether b grants all that a grants.
func (e elements[T]) within(a, b []T) bool {
	for _, x := range a {
		if !slices.ContainsFunc(b, func(y T) bool { return e.covers(y, x) }) {
			return false
		}
	}
	return true
}

// treeOf is the order of elements of which two have nothing in common unless one covers the other.
func treeOf[T any](covers func(a, b T) bool, compare func(a, b T) int) elements[T] {
	return elements[T]{
		covers: covers, compare: compare,
		common: func(a, b T) (T, bool) {
			if covers(a, b) {
				return b, true
			}
			return a, covers(b, a)
		},
	}
}

// words are elements that cover themselves alone.
func words[T ~string]() elements[T] {
	return treeOf(func(a, b T) bool { return a == b }, func(a, b T) int { return strings.Compare(string(a), string(b)) })
}

// paths are covered by the paths above them. A variable is a root of its own, since nobody knows where it leads; "/"
// covers it all the same.
func paths() elements[string] {
	return treeOf(func(a, b string) bool { return a == "/" || within(spellHome(a), spellHome(b)) }, func(a, b string) int {
		return strings.Compare(spellHome(a), spellHome(b))
	})
}

func spellHome(p string) string {
	if rest, ok := strings.CutPrefix(p, "~"); ok {
		return "$HOME" + rest
	}
	return p
}

// addresses are prefixes.
func addresses() elements[netip.Prefix] {
	return treeOf(func(a, b netip.Prefix) bool { return a.Bits() <= b.Bits() && a.Contains(b.Addr()) }, comparePrefixes)
}

// reachable are the prefixes of a network policy. A range does not cover a single address of a class that has to be
// named by itself (metadata, loopback): the range does not open it.
func reachable() elements[netip.Prefix] {
	return treeOf(func(a, b netip.Prefix) bool {
		if a != b && b.IsSingleIP() {
			if c := netns.ClassOf(b.Addr()); c != netns.ClassPublic && c != netns.ClassPrivate {
				return false
			}
		}
		return addresses().covers(a, b)
	}, comparePrefixes)
}

func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

// variablePatterns are names of variables, or beginnings of such with a '*' behind.
func variablePatterns() elements[string] {
	return treeOf(func(a, b string) bool {
		begin, ok := strings.CutSuffix(a, "*")
		return a == b || ok && strings.HasPrefix(b, begin)
	}, strings.Compare)
}

// devices differ in three ways, so they have something in common if they have in each.
func devices() elements[Device] {
	number := func(a, b int64) (int64, bool) {
		if a == anyNumber || a == b {
			return b, true
		}
		return a, b == anyNumber
	}
	return elements[Device]{
		covers:  Device.covers,
		compare: func(a, b Device) int { return strings.Compare(a.String(), b.String()) },
		common: func(a, b Device) (Device, bool) {
			major, ok := number(a.Major, b.Major)
			minor, ok2 := number(a.Minor, b.Minor)
			var access strings.Builder
			for _, c := range "rwm" {
				if strings.ContainsRune(a.Access, c) && strings.ContainsRune(b.Access, c) {
					access.WriteString(string(c))
				}
			}
			return Device{Type: a.Type, Major: major, Minor: minor, Access: access.String()}, ok && ok2 && a.Type == b.Type && access.String() != ""
		},
	}
}

// egressRules are rules of the gateway, in their canonical spelling: what covers what, the gateway's own rules say.
func egressRules() elements[egress.Rule] {
	return elements[egress.Rule]{
		covers:  egress.Rule.Covers,
		common:  egress.Rule.Meet,
		compare: func(a, b egress.Rule) int { return strings.Compare(a.String(), b.String()) },
	}
}

// parseRules reads rules, with those that sets stand for. What is no rule matches nothing, and Validate refuses it.
func parseRules(texts, sets []string) []egress.Rule {
	var out []egress.Rule
	for _, name := range sets {
		set, err := egress.RuleSet(name)
		if err == nil {
			texts = slices.Concat(texts, set)
		}
	}
	for _, t := range texts {
		if r, err := egress.ParseRule(t); err == nil {
			out = append(out, r.Canonical())
		}
	}
	return out
}

func ruleTexts(rules []egress.Rule) []string {
	var out []string
	for _, r := range rules {
		out = append(out, r.String())
	}
	return out
}

// matchAny reports whether a name matches one of the patterns of path.Match.
func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, name)
		return ok && err == nil
	})
}
