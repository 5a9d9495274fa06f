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

// Covers reports whether everything that b matches is matched by r.
func (r Rule) Covers(b Rule) bool {
	return r.coversTarget(&b) && r.coversPorts(&b) &&
		!slices.ContainsFunc(b.protocols, func(p Protocol) bool { return !r.speaks(p) }) &&
		(r.methods == nil || b.methods != nil && !slices.ContainsFunc(b.methods, func(m string) bool { return !slices.Contains(r.methods, m) })) &&
		(r.hostKeys == nil || b.hostKeys != nil && !slices.ContainsFunc(b.hostKeys, func(k string) bool { return !slices.Contains(r.hostKeys, k) })) &&
		(r.path == "" || b.path != "" && belowPath(b.path, r.path))
}

func (r *Rule) coversTarget(b *Rule) bool {
	switch {
	case r.text == "" || b.text == "" || r.prefix.IsValid() != b.prefix.IsValid():
		return false
	case r.prefix.IsValid():
		return r.prefix.Bits() <= b.prefix.Bits() && r.prefix.Contains(b.prefix.Addr())
	case !b.wildcard:
		return r.matchesName(b.host)
	}
	return r.wildcard && (r.host == "" || r.host == b.host || b.host != "" && r.matchesName(b.host))
}

func (r *Rule) coversPorts(b *Rule) bool {
	have := mergePorts(r.ports) // 80-90,91-99 covers 85-95
	return !slices.ContainsFunc(b.ports, func(want portRange) bool {
		return !slices.ContainsFunc(have, func(have portRange) bool { return have.first <= want.first && want.last <= have.last })
	})
}

// touches reports whether the two rules match anything in common, by target and ports.
func (r *Rule) touches(b *Rule) bool {
	ports := slices.ContainsFunc(r.ports, func(x portRange) bool {
		return slices.ContainsFunc(b.ports, func(y portRange) bool { return x.first <= y.last && y.first <= x.last })
	})
	switch {
	case !ports || r.prefix.IsValid() != b.prefix.IsValid():
		return false
	case r.prefix.IsValid():
		return r.prefix.Overlaps(b.prefix)
	}
	return r.coversTarget(b) || b.coversTarget(r)
}

// Destination decides on a destination that needs no rule, because something else names it: only rules that deny count.
func (p *Policy) Destination(host string, port uint16) Decision {
	d := Decision{Allowed: true, Rule: host}
	if r := p.denies(host, port); r != nil {
		d = refuse(DeniedByRule, r.text, "%s is denied by the rule %q", fmt.Sprintf("%s:%d", host, port), r.text)
	}
	return p.both(d, func(q *Policy) Decision { return q.Destination(host, port) })
}
