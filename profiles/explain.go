package profiles

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// Answer says what a profile makes of one thing, and which rule decides it.
type Answer struct {
	// Verdict is "allowed", "refused", "hidden", "removed", or "depends" on what the rule says.
	Verdict string `json:"verdict"`
	// Rule is the key of the profile, or the built-in list.
	Rule string `json:"rule"`
	// Why is for people.
	Why string `json:"why,omitempty"`
	// Allow is what would allow it, in the words of a profile file; "" where it is allowed.
	Allow string `json:"allow,omitempty"`
}

// The verdicts.
const (
	VerdictAllowed = "allowed"
	VerdictRefused = "refused"
	VerdictHidden  = "hidden"
	VerdictRemoved = "removed"
	VerdictDepends = "depends"
)

func everything() Answer {
	return Answer{Verdict: VerdictAllowed, Rule: "unrestricted", Why: "the profile has no rules; the engine's own still hold"}
}

// Resolve returns a copy of the profile in which $HOME, ~ and $WORKSPACE of the file lists are these directories.
func Resolve(p *Profile, home, workspace string) *Profile {
	return expandPaths(p, Variables{home: home, workspace: workspace})
}

// expandPaths returns a copy of the profile without variables in its file lists: what can't be expanded is left out.
func expandPaths(p *Profile, vars Variables) *Profile {
	out := *p
	for _, list := range []*[]string{
		&out.Filesystem.Read, &out.Filesystem.Execute, &out.Filesystem.Write, &out.Filesystem.Hide, &out.Filesystem.Workspace.Paths,
	} {
		var resolved []string
		for _, unsafePath := range *list {
			if expanded, ok := vars.expand(unsafePath); ok {
				resolved = append(resolved, expanded)
			}
		}
		*list = resolved
	}
	return &out
}

// ExplainSyscall says what a profile makes of a system call on an architecture (GOARCH).
func ExplainSyscall(p *Profile, name, goarch string) Answer {
	if p.Unrestricted {
		return everything()
	}
	allow := "syscalls: {allow: [" + name + "]}"
	switch {
	case slices.Contains(p.Syscalls.Deny, name):
		return Answer{VerdictRefused, "syscalls.deny", "EPERM", "taking it out of syscalls.deny"}
	case slices.Contains(p.Syscalls.Allow, name):
		return Answer{Verdict: VerdictAllowed, Rule: "syscalls.allow"}
	}
	for _, k := range packs() {
		if !slices.Contains(packCalls(k), name) {
			continue
		}
		if p.HasPack(k) {
			return Answer{Verdict: VerdictAllowed, Rule: "syscalls.packs " + string(k)}
		}
		allow = "syscalls: {packs: [" + string(k) + "]}"
		break
	}
	if conditions := callConditions(agentFilter(p, goarch), name); conditions != "" {
		return Answer{VerdictDepends, "built-in rules on arguments", conditions, allow}
	}
	if slices.Contains(baseAllowed(), name) {
		return Answer{Verdict: VerdictAllowed, Rule: "built-in list of calls"}
	}
	for _, r := range refused() {
		if slices.Contains(r.names, name) {
			return Answer{VerdictRefused, "built-in list of refused calls", "EPERM: " + r.why, allow}
		}
	}
	return Answer{VerdictRefused, "built-in default", "EPERM for a call that is known and not listed, ENOSYS for one that is not", allow}
}

// callConditions lists what a filter asks of a call's arguments, "" if it asks nothing.
func callConditions(f *SeccompFilter, name string) string {
	var b strings.Builder
	one := SeccompFilter{Default: f.Default}
	for _, r := range f.Refuse {
		if r.Syscall == name {
			one.Refuse = append(one.Refuse, r)
		}
	}
	conditional := len(one.Refuse) > 0
	for i := range f.Rules {
		r := f.Rules[i]
		if slices.Contains(r.Names, name) {
			r.Names = []string{name}
			one.Rules = append(one.Rules, r)
			conditional = conditional || len(r.Args) > 0 || r.Action.Do == DoErrno && r.Action.Errno != ePERM
		}
	}
	if !conditional {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(one.String()), "\n")
	for _, l := range lines[2:] { // without the heading and the ABIs
		l, _ = strings.CutSuffix(strings.Join(strings.Fields(l), " "), ": "+name)
		fmt.Fprintf(&b, "%s\n", strings.TrimPrefix(l, name+": "))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// packCalls are the calls that a pack adds whatever their arguments are.
func packCalls(k Pack) []string {
	switch k {
	case PackDebug:
		return debugCalls()
	case PackBrowser:
		return []string{"setns"}
	case PackContainers:
		return slices.Concat(mountCalls(), containerCalls())
	case PackSudo:
	}
	return nil
}

// ExplainPath says what a profile makes of reading, writing and executing a path of the container, in this order.
func ExplainPath(p *Profile, file string) []Answer {
	if p.Unrestricted {
		return []Answer{everything()}
	}
	f := &p.Filesystem
	for _, h := range f.Hide {
		hides := within(spellHome(h), spellHome(file))
		if isPattern(h) {
			for at := file; !hides && at != "/" && at != "."; at = path.Dir(at) {
				hides, _ = MatchHide(spellHome(h), spellHome(at))
			}
		}
		if hides {
			return []Answer{{VerdictHidden, "filesystem.hide " + h, "something empty is there", "taking it out of filesystem.hide"}}
		}
	}
	var out []Answer
	for _, set := range []struct {
		field string
		paths []string
		key   string
	}{
		{"read", slices.Concat(f.Read, f.Write), "read"}, {"write", f.Write, "write"}, {"execute", f.Execute, "execute"},
	} {
		i := slices.IndexFunc(set.paths, func(g string) bool { return paths().covers(g, file) })
		if i >= 0 {
			a := Answer{Verdict: VerdictAllowed, Rule: "filesystem." + set.field + " " + set.paths[i], Why: set.field}
			if set.field == "write" && f.Workspace.mode() != WorkspaceDirect {
				a.Why = "write; in a workspace: " + string(f.Workspace.mode())
			}
			out = append(out, a)
			continue
		}
		out = append(out, Answer{
			VerdictRefused, "filesystem." + set.field, set.field + ": EACCES, no entry covers it",
			"filesystem: {" + set.key + ": [..., " + folderOf(file) + "]}",
		})
	}
	return out
}

// folderOf is what to grant for a file: its folder, unless that is all.
func folderOf(file string) string {
	if dir := path.Dir(file); dir != "/" {
		return dir
	}
	return file
}

// ExplainEnv says what a profile makes of a variable.
func ExplainEnv(p *Profile, name string) Answer {
	if p.Unrestricted {
		return everything()
	}
	e := &p.Environment
	_, set := e.Set[name]
	for _, d := range e.Deny {
		if ok, _ := path.Match(d, name); ok && !set {
			return Answer{VerdictRemoved, "environment.deny " + d, "", "taking it out of environment.deny"}
		}
	}
	switch {
	case set:
		return Answer{Verdict: VerdictAllowed, Rule: "environment.set", Why: "with the value " + e.Set[name]}
	case len(e.Allow) > 0 && !matchAny(e.Allow, name):
		return Answer{VerdictRemoved, "environment.allow", "no entry matches it", "environment: {allow: [..., " + name + "]}"}
	case matchAny(secretVariables(), name) && !p.Trust.Secrets && !slices.Contains(p.Trust.Waive, "env:"+name):
		return Answer{
			VerdictRefused, "trust.secrets", "a container that has it is not created: its name is that of a secret",
			"trust: {waive: [\"env:" + name + "\"]}, or network.credentials",
		}
	}
	return Answer{Verdict: VerdictAllowed, Rule: "environment"}
}

// ExplainHost says what a profile makes of connections to a host, "name" or "name:port".
func ExplainHost(p *Profile, host string) Answer {
	if p.Unrestricted {
		return everything()
	}
	if _, port, ok := cutPort(host); ok && p.Network.Mode != NetworkNone && p.Network.Mode != "" {
		if a := ExplainPort(p, PortConnect, port); a.Verdict == VerdictRefused {
			return a
		}
	}
	switch p.Network.Mode {
	case NetworkHost:
		return Answer{Verdict: VerdictAllowed, Rule: "network.mode host", Why: "if the spec asks for the host's network; else as with engine"}
	case NetworkEngine:
		return Answer{
			VerdictDepends, "network.mode engine",
			"public addresses are reachable as the engine's network allows; private ones only in network.allowPrivate, metadata never", "network: {allowPrivate: [...]}",
		}
	case NetworkGateway:
		return explainGateway(p, host)
	case NetworkNone:
	}
	return Answer{VerdictRefused, "network.mode none", "there is a loopback device and nothing else", "network: {mode: gateway, allow: [\"" + host + "\"]}"}
}

// explainGateway asks the gateway's own rules. A host without a port is allowed if it is on any.
func explainGateway(p *Profile, host string) Answer {
	n := &p.Network
	policy, err := egress.Compile(egress.Config{Allow: n.Allow, Deny: n.Deny, RuleSets: n.RuleSets, Addresses: n.Addresses})
	if err != nil {
		return Answer{Verdict: VerdictRefused, Rule: "network", Why: err.Error()}
	}
	var d egress.Decision
	rule := host
	switch name, port, ok := cutPort(host); {
	case !ok:
		d, rule = policy.Resolves(host), host+":443"
	default:
		if addr, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
			d = policy.ConnectAddress(netip.AddrPortFrom(addr, port), "")
		} else {
			d = policy.Connect(name, port, "")
		}
	}
	switch {
	case d.Allowed && d.Inspect:
		return Answer{VerdictDepends, n.ruleName(d.Rule), "TLS is inspected there, and each request is judged by its method and path", ""}
	case d.Allowed:
		return Answer{Verdict: VerdictAllowed, Rule: n.ruleName(d.Rule)}
	case d.Code == egress.DeniedByRule:
		return Answer{VerdictRefused, "network.deny " + d.Rule, d.Reason, "taking it out of network.deny"}
	case d.Code == egress.BadName || d.Code == egress.BadAddress:
		return Answer{VerdictRefused, "network", d.Reason, "network: {addresses: [...]}"}
	}
	return Answer{VerdictRefused, "network.allow", d.Reason, "network: {allow: [..., \"" + rule + "\"]}"}
}

// cutPort splits a port off; false if there is none.
func cutPort(host string) (name string, port uint16, ok bool) {
	i := strings.LastIndexByte(host, ':')
	if i < 0 || strings.Contains(host[:i], ":") && !strings.HasSuffix(host[:i], "]") {
		return host, 0, false
	}
	v, err := strconv.ParseUint(host[i+1:], 10, 16)
	return host[:i], uint16(v), err == nil
}

// ruleName says where a rule stands in the profile.
func (n *Network) ruleName(rule string) string {
	if !slices.Contains(n.Allow, rule) {
		for _, name := range n.RuleSets {
			if set, err := egress.RuleSet(name); err == nil && slices.Contains(set, rule) {
				return "network.ruleSets " + name + " (" + rule + ")"
			}
		}
	}
	return "network.allow " + rule
}

// ListedCalls returns the names of the system calls that every profile but none allows whatever their arguments are, and
// of those that it refuses unless a pack or a list of the profile adds them.
func ListedCalls() (allowed, refusedCalls []string) {
	for _, r := range refused() {
		refusedCalls = append(refusedCalls, r.names...)
	}
	return baseAllowed(), refusedCalls
}

// PackOf returns the pack that brings a call, "" if none does.
func PackOf(call string) Pack {
	for _, k := range packs() {
		if slices.Contains(packCalls(k), call) {
			return k
		}
	}
	return ""
}
