package egress

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/agentsafe/agentsafe/netns"
)

// Config is a policy as text, the way a profile has it. The zero value allows nothing.
type Config struct {
	Allow    []string `json:"allow,omitempty"`
	Deny     []string `json:"deny,omitempty"`
	RuleSets []string `json:"ruleSets,omitempty"`
	// Addresses are those that aren't public and may be connected to nevertheless.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// Policy is a compiled Config. It is immutable; the zero value allows nothing.
type Policy struct {
	allow, deny []Rule
	addresses   []netip.Prefix
	// also are policies that have to allow it as well.
	also []*Policy
}

// And returns a policy that allows what p and all of others allow: the policy of a pod is that of each of its
// containers.
func (p *Policy) And(others ...*Policy) *Policy {
	out := *p
	out.also = append(slices.Clone(p.also), others...)
	return &out
}

// both asks the other policies whenever one has allowed. A name that one of them spells out is not one of a wildcard.
func (p *Policy) both(d Decision, ask func(*Policy) Decision) Decision {
	for _, q := range p.also {
		if !d.Allowed {
			return d
		}
		e := ask(q)
		keys, inspect := commonKeys(d.HostKeys, e.HostKeys), d.Inspect || e.Inspect
		if !e.Allowed || d.Wildcard && !e.Wildcard {
			d = e
		}
		d.HostKeys, d.Inspect = keys, inspect
	}
	return d
}

// commonKeys keeps what both lists have; nil is the list of all.
func commonKeys(a, b []string) []string {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	out := []string{}
	for _, k := range a {
		if slices.Contains(b, k) {
			out = append(out, k)
		}
	}
	return out
}

// Compile parses all rules. The error is that of the first rule which is wrong.
func Compile(c Config) (*Policy, error) {
	p := &Policy{addresses: c.Addresses}
	var err error
	for _, name := range c.RuleSets {
		set, err := RuleSet(name)
		if err != nil {
			return nil, err
		}
		if p.allow, err = appendRules(p.allow, set); err != nil {
			return nil, err
		}
	}
	if p.allow, err = appendRules(p.allow, c.Allow); err != nil {
		return nil, err
	}
	if p.deny, err = appendRules(p.deny, c.Deny); err != nil {
		return nil, err
	}
	for _, a := range c.Addresses {
		if _, err := parsePrefix(a.String()); err != nil || a.Bits() == 0 {
			return nil, fmt.Errorf("network addresses %q: not an address or a range in its canonical form", a)
		}
	}
	return p, nil
}

func appendRules(to []Rule, texts []string) ([]Rule, error) {
	for _, t := range texts {
		r, err := ParseRule(t)
		if err != nil {
			return nil, err
		}
		to = append(to, r)
	}
	return to, nil
}

// Code says in one word why something was refused.
type Code string

// The codes of refusals.
const (
	NoRule        Code = "no-rule"        // no rule allows it
	DeniedByRule  Code = "denied"         // a rule denies it
	BadName       Code = "bad-name"       // not a host name
	BadAddress    Code = "bad-address"    // the address is of a class that is always refused
	NoName        Code = "no-name"        // an address, where only names are allowed
	NameMismatch  Code = "name-mismatch"  // what the connection says differs from where it goes
	HiddenName    Code = "hidden-name"    // no SNI, or an encrypted one
	WrongProtocol Code = "wrong-protocol" // not what the rule lets pass
	WrongHostKey  Code = "wrong-host-key" // of an SSH server
	OverLimit     Code = "limit"          // a limit is used up
	Unreachable   Code = "unreachable"    // allowed, but it can't be connected to
)

// Decision is allowed, or the reason why not.
type Decision struct {
	Allowed bool
	// Rule is the rule that decided, "" if none did.
	Rule string
	Code Code
	// Reason is one line for people: what was refused, and what would allow it.
	Reason string
	// Wildcard says that the rule covers names that nobody wrote down.
	Wildcard bool
	// HostKeys are fingerprints of which the SSH server has to show one; nil is any key.
	HostKeys []string
	// Inspect says that TLS is allowed as far as the requests in it are: each has to be asked about ([Policy.Request]).
	Inspect bool
}

func refuse(code Code, rule, format string, args ...any) Decision {
	return Decision{Code: code, Rule: rule, Reason: fmt.Sprintf(format, args...)}
}

func (r *Rule) allowed() Decision {
	return Decision{Allowed: true, Rule: r.text, Wildcard: r.wildcard, HostKeys: r.hostKeys, Inspect: r.Inspects()}
}

// denies reports whether a rule that denies covers host and port; port 0 asks about every port, and only a rule for all
// ports covers that.
func (p *Policy) denies(host string, port uint16) *Rule {
	for i := range p.deny {
		if r := &p.deny[i]; r.matchesName(host) && (r.matchesPort(port) || port == 0 && r.allPorts()) {
			return r
		}
	}
	return nil
}

func (r *Rule) allPorts() bool {
	return len(r.ports) == 1 && r.ports[0] == portRange{1, 65535}
}

// Resolves decides whether a name may be looked up: if there is a port on which it may be connected to.
func (p *Policy) Resolves(unsafeHost string) Decision {
	return p.both(p.resolves(unsafeHost), func(q *Policy) Decision { return q.Resolves(unsafeHost) })
}

func (p *Policy) resolves(unsafeHost string) Decision {
	host, err := ParseHost(unsafeHost)
	if err != nil {
		return refuse(BadName, "", "%v", err)
	}
	if r := p.denies(host, 0); r != nil {
		return refuse(DeniedByRule, r.text, "%s is denied by the rule %q", host, r.text)
	}
	var found *Rule
	for i := range p.allow {
		r := &p.allow[i]
		if !r.matchesName(host) {
			continue
		}
		if !r.wildcard {
			return r.allowed()
		}
		if found == nil {
			found = r
		}
	}
	if found != nil {
		return found.allowed()
	}
	return refuse(NoRule, "", "no rule allows %s; a rule \"%s:443\" would", host, host)
}

// Connect decides on a connection to a name. The protocol "" asks whether any is allowed, before its first byte.
func (p *Policy) Connect(unsafeHost string, port uint16, proto Protocol) Decision {
	return p.both(p.connect(unsafeHost, port, proto, func(*Rule) bool { return true }),
		func(q *Policy) Decision { return q.Connect(unsafeHost, port, proto) })
}

// Request decides on one HTTP request, in the open (HTTP) or inside of TLS. The path is the escaped one, without a query.
func (p *Policy) Request(unsafeHost string, port uint16, proto Protocol, method, path string) Decision {
	return p.both(p.connect(unsafeHost, port, proto, func(r *Rule) bool { return r.matchesRequest(method, path) }),
		func(q *Policy) Decision { return q.Request(unsafeHost, port, proto, method, path) })
}

// Inspects reports whether there are rules that judge requests inside of TLS.
func (p *Policy) Inspects() bool {
	return slices.ContainsFunc(p.allow, Rule.Inspects) || slices.ContainsFunc(p.also, (*Policy).Inspects)
}

func (p *Policy) connect(unsafeHost string, port uint16, proto Protocol, also func(*Rule) bool) Decision {
	host, err := ParseHost(unsafeHost)
	if err != nil {
		return refuse(BadName, "", "%v", err)
	}
	if r := p.denies(host, port); r != nil {
		return refuse(DeniedByRule, r.text, "%s:%d is denied by the rule %q", host, port, r.text)
	}
	var near, within *Rule
	for i := range p.allow {
		r := &p.allow[i]
		if !r.matchesName(host) || !r.matchesPort(port) {
			continue
		}
		if (proto == "" || r.speaks(proto)) && also(r) {
			if !r.Inspects() {
				return r.allowed()
			}
			within = r // unless another rule lets all of it pass
			continue
		}
		if near == nil || !near.speaks(proto) {
			near = r
		}
	}
	switch {
	case within != nil:
		return within.allowed()
	case near != nil && !near.speaks(proto):
		return refuse(WrongProtocol, near.text, "the rule %q does not let %s pass; \"tcp://%s:%d\" would", near.text, proto, host, port)
	case near != nil:
		return refuse(NoRule, near.text, "the rule %q does not cover this method or path", near.text)
	}
	return refuse(NoRule, "", "no rule allows %s:%d; a rule \"%s:%d\" would", host, port, host, port)
}

func (r *Rule) speaks(proto Protocol) bool {
	return slices.Contains(r.protocols, proto)
}

// ConnectAddress decides on a connection to an address that stands for no name.
func (p *Policy) ConnectAddress(a netip.AddrPort, proto Protocol) Decision {
	return p.both(p.connectAddress(a, proto), func(q *Policy) Decision { return q.ConnectAddress(a, proto) })
}

func (p *Policy) connectAddress(a netip.AddrPort, proto Protocol) Decision {
	addr := a.Addr().Unmap()
	for i := range p.deny {
		if r := &p.deny[i]; r.prefix.IsValid() && r.prefix.Contains(addr) && r.matchesPort(a.Port()) {
			return refuse(DeniedByRule, r.text, "%s is denied by the rule %q", a, r.text)
		}
	}
	for i := range p.allow {
		r := &p.allow[i]
		if !r.prefix.IsValid() || !r.prefix.Contains(addr) || !r.matchesPort(a.Port()) {
			continue
		}
		if proto != "" && !r.speaks(proto) {
			return refuse(WrongProtocol, r.text, "the rule %q does not let %s pass", r.text, proto)
		}
		// The rule names private ranges as such; metadata, loopback and the like want an address in its own right.
		if class := netns.ClassOf(addr); class != netns.ClassPublic && class != netns.ClassPrivate && !p.named(addr, class) {
			return refuse(BadAddress, r.text, "%s is a %s address, which no range opens", addr, class)
		}
		return r.allowed()
	}
	return refuse(NoName, "", "%s was connected to without a name; a rule \"%s\" would allow it", a, netip.AddrPortFrom(addr, a.Port()))
}

// Address decides on an address that an allowed name has resolved to.
func (p *Policy) Address(a netip.Addr, port uint16) Decision {
	return p.both(p.address(a, port), func(q *Policy) Decision { return q.Address(a, port) })
}

func (p *Policy) address(a netip.Addr, port uint16) Decision {
	a = a.Unmap().WithZone("")
	for i := range p.deny {
		if r := &p.deny[i]; r.prefix.IsValid() && r.prefix.Contains(a) && (port == 0 || r.matchesPort(port)) {
			return refuse(DeniedByRule, r.text, "the address %s is denied by the rule %q", a, r.text)
		}
	}
	class := netns.ClassOf(a)
	if class == netns.ClassPublic || p.named(a, class) {
		return Decision{Allowed: true}
	}
	return refuse(BadAddress, "", "%s is a %s address; naming it in network.addresses would allow it", a, class)
}

// named reports whether the administrator named the address. A class that holds credentials or the host itself has to be
// named as a single address.
func (p *Policy) named(a netip.Addr, class netns.Class) bool {
	for _, n := range p.addresses {
		if n.Contains(a) && (class == netns.ClassPrivate || n.IsSingleIP()) {
			return true
		}
	}
	return false
}
