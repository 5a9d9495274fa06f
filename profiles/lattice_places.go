package profiles

import (
	"net/netip"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

type namespaceKind = specs.LinuxNamespaceType

// workspaceDimensions: a workspace is the tighter the less of a write reaches the host, and the more mounts that holds
// for. The fields beside the mode mean nothing in the mode direct.
func workspaceDimensions() []dimension {
	of := func(p *Profile) *Workspace { return &p.Filesystem.Workspace }
	direct := func(p *Profile) bool { return of(p).mode() == WorkspaceDirect }
	covers := func(a, b *Profile) bool { // a's mounts are at least b's
		switch {
		case direct(b):
			return true
		case direct(a):
			return false
		}
		return len(of(a).Paths) == 0 || len(of(b).Paths) > 0 && words[string]().within(of(b).Paths, of(a).Paths)
	}
	kills := func(p *Profile) bool { return !direct(p) && of(p).Background != "keep" }
	manual := func(p *Profile) bool { return !direct(p) }
	return []dimension{
		ordered("filesystem.workspace.mode", []WorkspaceMode{WorkspaceReadonly, WorkspaceOverlay, WorkspaceDirect}, WorkspaceDirect,
			func(p *Profile) *WorkspaceMode { return &of(p).Mode }),
		{
			name: "filesystem.workspace.paths", within: covers,
			meet: meetWorkspaces,
		},
		{
			name:   "filesystem.workspace.background",
			within: func(a, b *Profile) bool { return !kills(b) || kills(a) },
			meet: func(a, b, out *Profile) {
				switch {
				case kills(a) || kills(b):
					of(out).Background = "kill"
				case !direct(a) || !direct(b):
					of(out).Background = "keep"
				}
			},
		},
		{
			name:   "filesystem.workspace.promote",
			within: func(a, b *Profile) bool { return manual(a) || !manual(b) },
			meet: func(a, b, out *Profile) {
				if manual(a) || manual(b) {
					of(out).Promote = "manual"
				}
			},
		},
		bound("filesystem.workspace.quota", func(p *Profile) *int64 { return &of(p).QuotaBytes }),
	}
}

// meetWorkspaces keeps the mounts of both: each is tighter for what it names.
func meetWorkspaces(a, b, out *Profile) {
	var all []string
	for _, p := range []*Profile{a, b} {
		w := &p.Filesystem.Workspace
		if w.mode() == WorkspaceDirect {
			continue
		}
		if len(w.Paths) == 0 {
			out.Filesystem.Workspace.Paths = nil
			return
		}
		all = append(all, w.Paths...)
	}
	out.Filesystem.Workspace.Paths = words[string]().canonical(all)
}

// networkDimensions: what the modes don't spell out they have wholly or not at all, so that a rule of the gateway can
// be compared with a network that has none.
func networkDimensions() []dimension {
	mode := func(p *Profile) NetworkMode {
		if p.Network.Mode == "" {
			return NetworkNone
		}
		return p.Network.Mode
	}
	gateway := func(p *Profile) bool { return mode(p) == NetworkGateway }
	private := func(p *Profile) []netip.Prefix {
		switch mode(p) {
		case NetworkGateway:
			return p.Network.Addresses
		case NetworkEngine:
			return p.Network.AllowPrivate
		case NetworkHost:
			return publicAndPrivate()
		case NetworkNone:
		}
		return nil
	}
	return []dimension{
		ordered("network.mode", []NetworkMode{NetworkNone, NetworkGateway, NetworkEngine, NetworkHost}, NetworkNone,
			func(p *Profile) *NetworkMode { return &p.Network.Mode }),
		{
			name:   "network.addresses",
			within: func(a, b *Profile) bool { return addresses().within(private(a), private(b)) },
			meet: func(a, b, out *Profile) {
				both := addresses().meet(private(a), private(b))
				switch min(rankNetwork(mode(a)), rankNetwork(mode(b))) {
				case rankNetwork(NetworkGateway):
					out.Network.Addresses = both
				case rankNetwork(NetworkEngine):
					out.Network.AllowPrivate = both
				}
			},
		},
		egressDimension(mode),
		{
			name: "network.deny",
			within: func(a, b *Profile) bool {
				return !gateway(b) || mode(a) == NetworkNone || gateway(a) && words[string]().within(b.Network.Deny, a.Network.Deny)
			},
			meet: func(a, b, out *Profile) {
				if min(rankNetwork(mode(a)), rankNetwork(mode(b))) == rankNetwork(NetworkGateway) {
					out.Network.Deny = words[string]().canonical(slices.Concat(a.Network.Deny, b.Network.Deny))
				}
			},
		},
		{
			name: "network.dialFrom",
			within: func(a, b *Profile) bool {
				return !gateway(a) || a.Network.DialFrom != "host" || gateway(b) && b.Network.DialFrom == "host"
			},
			meet: func(a, b, out *Profile) {
				if gateway(a) && gateway(b) && a.Network.DialFrom == "host" && b.Network.DialFrom == "host" {
					out.Network.DialFrom = "host"
				}
			},
		},
		{
			name: "network.credentials",
			within: func(a, b *Profile) bool {
				return credentials().within(a.Network.Credentials, b.Network.Credentials)
			},
			meet: func(a, b, out *Profile) {
				out.Network.Credentials = credentials().meet(a.Network.Credentials, b.Network.Credentials)
			},
		},
	}
}

func rankNetwork(m NetworkMode) int {
	return slices.Index([]NetworkMode{NetworkNone, NetworkGateway, NetworkEngine, NetworkHost}, m)
}

// credentials have nothing in common unless they are the same.
func credentials() elements[Credential] {
	compare := func(a, b Credential) int {
		return slices.Compare(append([]string{a.Name, a.File, a.Destination, a.Present, a.BaseURLEnv, a.PlaceholderEnv}, a.Command...),
			append([]string{b.Name, b.File, b.Destination, b.Present, b.BaseURLEnv, b.PlaceholderEnv}, b.Command...))
	}
	return treeOf(func(a, b Credential) bool { return compare(a, b) == 0 }, compare)
}

// egressDimension compares rules of the gateway, with those that rule sets stand for.
func egressDimension(mode func(*Profile) NetworkMode) dimension {
	rules := func(p *Profile) []string { return slices.Concat(p.Network.Allow, p.Network.RuleSets) }
	return dimension{
		name: "network.allow",
		within: func(a, b *Profile) bool {
			switch {
			case mode(a) == NetworkNone || mode(b) == NetworkEngine || mode(b) == NetworkHost:
				return true
			case mode(a) != NetworkGateway || mode(b) != NetworkGateway:
				return false
			}
			return egressRules().within(rules(a), rules(b))
		},
		meet: func(a, b, out *Profile) {
			var both []string
			switch {
			case mode(a) == NetworkGateway && mode(b) == NetworkGateway:
				both = egressRules().meet(rules(a), rules(b))
			case mode(a) == NetworkGateway && mode(b) != NetworkNone:
				both = egressRules().canonical(rules(a))
			case mode(b) == NetworkGateway && mode(a) != NetworkNone:
				both = egressRules().canonical(rules(b))
			}
			for _, r := range both {
				if ruleSet(r) {
					out.Network.RuleSets = append(out.Network.RuleSets, r)
				} else {
					out.Network.Allow = append(out.Network.Allow, r)
				}
			}
		},
	}
}

// ruleSet tells the name of a rule set from a rule, which has a dot, a star or a colon.
func ruleSet(text string) bool {
	for i := range len(text) {
		if c := text[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
