package egress

import (
	"fmt"
	"slices"
)

// Covers reports whether everything that r allows is allowed by one rule of p already, and whether no rule of p denies a
// part of it: what may be added below a policy of the host.
func (p *Policy) Covers(r Rule) bool {
	for i := range p.deny {
		if p.deny[i].touches(&r) {
			return false
		}
	}
	return slices.ContainsFunc(p.allow, func(a Rule) bool { return a.Covers(r) })
}

// Covers reports whether everything that r matches is matched by a.
func (a Rule) Covers(r Rule) bool {
	return a.coversTarget(&r) && a.coversPorts(&r) &&
		!slices.ContainsFunc(r.protocols, func(p Protocol) bool { return !a.speaks(p) }) &&
		(a.methods == nil || r.methods != nil && !slices.ContainsFunc(r.methods, func(m string) bool { return !slices.Contains(a.methods, m) })) &&
		(a.hostKeys == nil || r.hostKeys != nil && !slices.ContainsFunc(r.hostKeys, func(k string) bool { return !slices.Contains(a.hostKeys, k) })) &&
		(a.path == "" || r.path != "" && belowPath(r.path, a.path))
}

func (a *Rule) coversTarget(r *Rule) bool {
	switch {
	case a.text == "" || r.text == "" || a.prefix.IsValid() != r.prefix.IsValid():
		return false
	case a.prefix.IsValid():
		return a.prefix.Bits() <= r.prefix.Bits() && a.prefix.Contains(r.prefix.Addr())
	case !r.wildcard:
		return a.matchesName(r.host)
	}
	return a.wildcard && (a.host == "" || a.host == r.host || r.host != "" && a.matchesName(r.host))
}

func (a *Rule) coversPorts(r *Rule) bool {
	have := mergePorts(a.ports) // 80-90,91-99 covers 85-95
	return !slices.ContainsFunc(r.ports, func(want portRange) bool {
		return !slices.ContainsFunc(have, func(have portRange) bool { return have.first <= want.first && want.last <= have.last })
	})
}

// touches reports whether the two rules match anything in common, by target and ports.
func (a *Rule) touches(r *Rule) bool {
	ports := slices.ContainsFunc(a.ports, func(x portRange) bool {
		return slices.ContainsFunc(r.ports, func(y portRange) bool { return x.first <= y.last && y.first <= x.last })
	})
	switch {
	case !ports || a.prefix.IsValid() != r.prefix.IsValid():
		return false
	case a.prefix.IsValid():
		return a.prefix.Overlaps(r.prefix)
	}
	return a.coversTarget(r) || r.coversTarget(a)
}

// Destination decides on a destination that needs no rule, because something else names it: only rules that deny count.
func (p *Policy) Destination(host string, port uint16) Decision {
	d := Decision{Allowed: true, Rule: host}
	if r := p.denies(host, port); r != nil {
		d = refuse(DeniedByRule, r.text, "%s is denied by the rule %q", fmt.Sprintf("%s:%d", host, port), r.text)
	}
	return p.both(d, func(q *Policy) Decision { return q.Destination(host, port) })
}
