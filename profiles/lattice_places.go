package profiles

import (
	"math"
	"net/netip"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/netns/egress"
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
		{
			// What lies in memory stays there for as long as somebody may want it, so nobody gets that by himself.
			name:   "filesystem.workspace.memory",
			within: func(a, b *Profile) bool { return of(a).MemoryBytes <= of(b).MemoryBytes },
			meet: func(a, b, out *Profile) {
				of(out).MemoryBytes = min(of(a).MemoryBytes, of(b).MemoryBytes)
			},
		},
		copies(direct),
	}
}

// copies: who gets a copy of a folder has more than who is refused; what is mounted directly is more than any copy.
func copies(direct func(p *Profile) bool) dimension {
	of := func(p *Profile) int64 {
		if direct(p) {
			return math.MaxInt64
		}
		return p.Filesystem.Workspace.CopyBytes
	}
	return dimension{
		name:   "filesystem.workspace.copy",
		within: func(a, b *Profile) bool { return of(a) <= of(b) },
		meet: func(a, b, out *Profile) {
			if n := min(of(a), of(b)); n != math.MaxInt64 {
				out.Filesystem.Workspace.CopyBytes = n
			}
		},
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
			name: "network.addresses",
			within: func(a, b *Profile) bool {
				return mode(b) == NetworkHost || reachable().within(private(a), private(b))
			},
			meet: func(a, b, out *Profile) {
				var both []netip.Prefix
				switch {
				case mode(a) == NetworkHost:
					both = reachable().canonical(private(b))
				case mode(b) == NetworkHost:
					both = reachable().canonical(private(a))
				default:
					both = reachable().meet(private(a), private(b))
				}
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
				return !gateway(b) || mode(a) == NetworkNone ||
					gateway(a) && egressRules().within(parseRules(b.Network.Deny, nil), parseRules(a.Network.Deny, nil))
			},
			meet: func(a, b, out *Profile) {
				if min(rankNetwork(mode(a)), rankNetwork(mode(b))) == rankNetwork(NetworkGateway) {
					out.Network.Deny = ruleTexts(egressRules().canonical(parseRules(slices.Concat(a.Network.Deny, b.Network.Deny), nil)))
				}
			},
		},
		dialDimension(mode),
		portsDimension("network.connectPorts", func(p *Profile) *[]PortRange { return &p.Network.ConnectPorts }),
		portsDimension("network.listenPorts", func(p *Profile) *[]PortRange { return &p.Network.ListenPorts }),
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

// dialDimension: nothing said is between the two, because the host's configuration can make it the host's network then,
// and it is all that a profile of another mode grants.
func dialDimension(mode func(*Profile) NetworkMode) dimension {
	words := []string{"container", "", "host"}
	rank := func(p *Profile) int {
		if mode(p) != NetworkGateway {
			return slices.Index(words, "")
		}
		return slices.Index(words, p.Network.DialFrom)
	}
	return dimension{
		name:   "network.dialFrom",
		within: func(a, b *Profile) bool { return mode(a) != NetworkGateway || rank(a) <= rank(b) },
		meet: func(a, b, out *Profile) {
			if min(rankNetwork(mode(a)), rankNetwork(mode(b))) == rankNetwork(NetworkGateway) {
				out.Network.DialFrom = words[max(0, min(rank(a), rank(b)))]
			}
		},
	}
}

func rankNetwork(m NetworkMode) int {
	return slices.Index([]NetworkMode{NetworkNone, NetworkGateway, NetworkEngine, NetworkHost}, m)
}

// credentials have nothing in common unless they are the same.
func credentials() elements[Credential] {
	texts := func(c Credential) []string {
		return append([]string{c.Name, c.File, c.Destination, c.Present, c.BaseURLEnv, c.PlaceholderEnv, c.BasePath, c.Client, strconv.FormatBool(c.Inspect)}, c.Command...)
	}
	compare := func(a, b Credential) int { return slices.Compare(texts(a), texts(b)) }
	return treeOf(func(a, b Credential) bool { return compare(a, b) == 0 }, compare)
}

// egressDimension compares rules of the gateway, with those that rule sets stand for.
func egressDimension(mode func(*Profile) NetworkMode) dimension {
	rules := func(p *Profile) []egress.Rule { return parseRules(p.Network.Allow, p.Network.RuleSets) }
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
			switch {
			case mode(a) == NetworkNone || mode(b) == NetworkNone || mode(a) != NetworkGateway && mode(b) != NetworkGateway:
				return
			case mode(a) != NetworkGateway:
				a = b
			case mode(b) != NetworkGateway:
				b = a
			}
			// The name of a set stays where both have it; beside it what it stands for would be said twice.
			out.Network.RuleSets = words[string]().meet(a.Network.RuleSets, b.Network.RuleSets)
			named := parseRules(nil, out.Network.RuleSets)
			both := slices.DeleteFunc(egressRules().meet(rules(a), rules(b)), func(r egress.Rule) bool {
				return egressRules().within([]egress.Rule{r}, named)
			})
			out.Network.Allow = ruleTexts(both)
		},
	}
}
