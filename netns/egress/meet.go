package egress

import (
	"slices"
	"strconv"
	"strings"
)

// Canonical returns the rule in the one spelling that all rules of the same meaning have. The zero value is its own.
func (r Rule) Canonical() Rule {
	if r.text == "" {
		return r
	}
	r.ports, r.methods = mergePorts(r.ports), slices.Sorted(slices.Values(r.methods))
	r.methods = slices.Compact(r.methods)
	if r.hostKeys != nil {
		r.hostKeys = slices.Compact(slices.Sorted(slices.Values(r.hostKeys)))
	}
	r.text = r.spell()
	return r
}

// Meet returns the rule, in its canonical spelling, that matches what both match; false if nothing does.
func (r Rule) Meet(b Rule) (Rule, bool) {
	out := r
	switch {
	case r.coversTarget(&b):
		out.host, out.wildcard, out.prefix = b.host, b.wildcard, b.prefix
	case !b.coversTarget(&r):
		return Rule{}, false
	}
	out.protocols = nil
	for _, p := range r.protocols {
		if slices.Contains(b.protocols, p) {
			out.protocols = append(out.protocols, p)
		}
	}
	out.ports = commonPorts(r.ports, b.ports)
	if len(out.protocols) == 0 || len(out.ports) == 0 {
		return Rule{}, false
	}
	switch {
	case r.methods == nil:
		out.methods = b.methods
	case b.methods != nil:
		out.methods = slices.DeleteFunc(slices.Clone(r.methods), func(m string) bool { return !slices.Contains(b.methods, m) })
		if len(out.methods) == 0 {
			return Rule{}, false
		}
	}
	if out.hostKeys = commonKeys(r.hostKeys, b.hostKeys); out.hostKeys != nil && len(out.hostKeys) == 0 {
		return Rule{}, false
	}
	switch {
	case r.path == "" || b.path != "" && belowPath(b.path, r.path):
		out.path = b.path
	case b.path != "" && !belowPath(r.path, b.path):
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
func (r *Rule) spell() string {
	var b strings.Builder
	if len(r.methods) > 0 {
		b.WriteString(strings.Join(r.methods, ",") + " ")
	}
	switch {
	case len(r.protocols) == 1 && r.protocols[0] == TLS:
		b.WriteString("https://")
	case len(r.protocols) == 1:
		b.WriteString(string(r.protocols[0]) + "://")
	case len(r.protocols) > 2 && !r.prefix.IsValid():
		b.WriteString("tcp://")
	}
	switch {
	case r.prefix.IsValid() && r.prefix.Addr().Is6():
		b.WriteString("[" + r.prefixText() + "]")
	case r.prefix.IsValid():
		b.WriteString(r.prefixText())
	case r.wildcard && r.host == "":
		b.WriteString("*")
	case r.wildcard:
		b.WriteString("*." + r.host)
	default:
		b.WriteString(r.host)
	}
	for i, p := range r.ports {
		if i == 0 {
			b.WriteString(":")
		} else {
			b.WriteString(",")
		}
		b.WriteString(strconv.Itoa(int(p.first)))
		if p.last != p.first {
			b.WriteString("-" + strconv.Itoa(int(p.last)))
		}
	}
	b.WriteString(r.path)
	if len(r.hostKeys) > 0 {
		b.WriteString(" " + strings.Join(r.hostKeys, ","))
	}
	return b.String()
}

// prefixText is a single address without its length: before a path a slash would be the path's.
func (r *Rule) prefixText() string {
	if r.prefix.IsSingleIP() {
		return r.prefix.Addr().String()
	}
	return r.prefix.String()
}
