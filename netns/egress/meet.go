package egress

import (
	"slices"
	"strconv"
	"strings"
)

// Canonical returns the rule in the one spelling that all rules of the same meaning have. The zero value is its own.
func (a Rule) Canonical() Rule {
	if a.text == "" {
		return a
	}
	a.ports, a.methods = mergePorts(a.ports), slices.Sorted(slices.Values(a.methods))
	a.methods = slices.Compact(a.methods)
	if a.hostKeys != nil {
		a.hostKeys = slices.Compact(slices.Sorted(slices.Values(a.hostKeys)))
	}
	a.text = a.spell()
	return a
}

// Meet returns the rule, in its canonical spelling, that matches what both match; false if nothing does.
func (a Rule) Meet(b Rule) (Rule, bool) {
	out := a
	switch {
	case a.coversTarget(&b):
		out.host, out.wildcard, out.prefix = b.host, b.wildcard, b.prefix
	case !b.coversTarget(&a):
		return Rule{}, false
	}
	out.protocols = nil
	for _, p := range a.protocols {
		if slices.Contains(b.protocols, p) {
			out.protocols = append(out.protocols, p)
		}
	}
	out.ports = commonPorts(a.ports, b.ports)
	if len(out.protocols) == 0 || len(out.ports) == 0 {
		return Rule{}, false
	}
	switch {
	case a.methods == nil:
		out.methods = b.methods
	case b.methods != nil:
		out.methods = slices.DeleteFunc(slices.Clone(a.methods), func(m string) bool { return !slices.Contains(b.methods, m) })
		if len(out.methods) == 0 {
			return Rule{}, false
		}
	}
	if out.hostKeys = commonKeys(a.hostKeys, b.hostKeys); out.hostKeys != nil && len(out.hostKeys) == 0 {
		return Rule{}, false
	}
	switch {
	case a.path == "" || b.path != "" && belowPath(b.path, a.path):
		out.path = b.path
	case b.path != "" && !belowPath(a.path, b.path):
		return Rule{}, false
	}
	return out.Canonical(), true
}

func commonPorts(a, b []portRange) []portRange {
	var out []portRange
	for _, x := range a {
		for _, y := range b {
			if first, last := max(x.first, y.first), min(x.last, y.last); first <= last {
				out = append(out, portRange{first, last})
			}
		}
	}
	return out
}

// mergePorts sorts ranges and joins those that touch.
func mergePorts(in []portRange) []portRange {
	sorted := slices.Clone(in)
	slices.SortFunc(sorted, func(x, y portRange) int { return int(x.first) - int(y.first) })
	var out []portRange
	for _, r := range sorted {
		if n := len(out); n > 0 && int(r.first) <= int(out[n-1].last)+1 {
			out[n-1].last = max(out[n-1].last, r.last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// spell writes a rule so that ParseRule reads the same.
func (a *Rule) spell() string {
	var b strings.Builder
	if len(a.methods) > 0 {
		b.WriteString(strings.Join(a.methods, ",") + " ")
	}
	switch {
	case len(a.protocols) == 1 && a.protocols[0] == TLS:
		b.WriteString("https://")
	case len(a.protocols) == 1:
		b.WriteString(string(a.protocols[0]) + "://")
	case len(a.protocols) > 2 && !a.prefix.IsValid():
		b.WriteString("tcp://")
	}
	switch {
	case a.prefix.IsValid() && a.prefix.Addr().Is6():
		b.WriteString("[" + a.prefixText() + "]")
	case a.prefix.IsValid():
		b.WriteString(a.prefixText())
	case a.wildcard && a.host == "":
		b.WriteString("*")
	case a.wildcard:
		b.WriteString("*." + a.host)
	default:
		b.WriteString(a.host)
	}
	for i, r := range a.ports {
		if i == 0 {
			b.WriteString(":")
		} else {
			b.WriteString(",")
		}
		b.WriteString(strconv.Itoa(int(r.first)))
		if r.last != r.first {
			b.WriteString("-" + strconv.Itoa(int(r.last)))
		}
	}
	b.WriteString(a.path)
	if len(a.hostKeys) > 0 {
		b.WriteString(" " + strings.Join(a.hostKeys, ","))
	}
	return b.String()
}

// prefixText is a single address without its length: before a path a slash would be the path's.
func (a *Rule) prefixText() string {
	if a.prefix.IsSingleIP() {
		return a.prefix.Addr().String()
	}
	return a.prefix.String()
}
