package netns

import (
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	tableName   = "agentsafe"
	refuseChain = "refuse"

	// hookPriority is after every NAT hook that an engine or a mesh installs
	// (nat output is -100), so that rules see the address that is really
	// dialled, not the one before DNAT.
	hookPriority = 1000
)

// Rules is a compiled Policy: what String prints and Install sends. It is
// immutable and may be used for any number of namespaces at once. The zero
// value has no rules, as have ModeOpen and ModeHost.
type Rules struct {
	policy Policy
	packet []byte // the whole transaction, empty without rules; read-only
}

// table is the readable form that String prints and the transaction encodes.
type table struct {
	sets   []set
	chains []chain
	// lifts says that the hold is removed at the same moment.
	lifts bool
}

// chain is a list of rules; with a hook it sees every packet of that hook.
type chain struct {
	name  string
	hook  hook
	rules []rule
}

type hook struct {
	name string
	num  uint32
	// nat makes it a chain of address translation.
	nat bool
}

// natPriority is before an engine's own redirections in the output hook, which have -100.
const natPriority = -110

// plan returns what nft calls a base chain's type, its priority and its policy. A translation chain drops nothing.
func (h hook) plan() (kind string, priority int32, policy uint32) {
	if h.nat {
		return "nat", natPriority, nfAccept
	}
	return "filter", hookPriority, nfDrop
}

// rule is one line of nft syntax and the expressions that it stands for.
type rule struct {
	text  string
	exprs []expr
}

// PlanRules compiles a policy. It makes no syscalls; equal policies give equal
// rules. It returns the error of Policy.Validate.
func PlanRules(p Policy) (*Rules, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p.AllowPrivate = slices.Clone(p.AllowPrivate)
	r := &Rules{policy: p}
	switch {
	case !p.Filtered():
	case p.Mode == ModeEngine && len(p.AllowPrivate) == 0 && littleEndian():
		r.packet = readOnlyBytes(enginePacket)
	default:
		r.packet, _ = planTable(p).encode()
	}
	return r, nil
}

// planTable is the policy as nftables objects, nil without rules.
func planTable(p Policy) *table {
	switch {
	case !p.Filtered():
		return nil
	case p.Mode == ModeEngine:
		return &table{sets: engineSets(), chains: []chain{refusal(), engineOutput(p.AllowPrivate), forward()}}
	}
	if p.Mode == ModeGateway {
		return planHold()
	}
	return &table{chains: []chain{refusal(), noneOutput(), forward()}}
}

// refusal answers so that the task fails at once and doesn't hang: connect
// returns ECONNREFUSED for TCP (an ICMP error would be kept as a soft error
// while the socket is locked by connect), EPERM or EHOSTUNREACH/EACCES for
// the rest.
func refusal() chain {
	return chain{name: refuseChain, rules: []rule{
		{"meta l4proto tcp reject with tcp reset", []expr{
			meta(reg, unix.NFT_META_L4PROTO), equal(unix.IPPROTO_TCP), reject(unix.NFT_REJECT_TCP_RST, 0),
		}},
		{"reject with icmpx admin-prohibited", []expr{
			reject(unix.NFT_REJECT_ICMPX_UNREACH, unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED),
		}},
	}}
}

// forward drops what would pass through the namespace: a container is not a
// router, and a packet injected from a tun device would miss the output hook.
// The explicit rule counts, not the policy, which the kernel sets a moment
// after the hook is registered.
func forward() chain {
	return chain{name: "forward", hook: hook{name: "forward", num: unix.NF_INET_FORWARD}, rules: []rule{
		{"drop", []expr{verdict(nfDrop, "")}},
	}}
}

func noneOutput() chain {
	return chain{name: "none", hook: hook{name: "output", num: unix.NF_INET_LOCAL_OUT}, rules: []rule{
		accept("fib daddr type local", isLocal()),
		refuse("", nil),
	}}
}

// engineOutput is the rule list of ModeEngine. The order is the policy: each
// line says what would break if it stood elsewhere.
func engineOutput(allow []netip.Prefix) chain {
	rules := []rule{
		// Links can't come up without neighbour discovery and multicast
		// listener reports, and duplicate address detection sends from ::,
		// so before the source check. Only the kernel or CAP_NET_RAW sends
		// these types.
		acceptNeighbours(),
		// The reset of a refused connection carries the refused address as
		// its source and travels from us to us, through this hook.
		accept("ct direction reply ct state related fib daddr type local", slices.Concat(
			isReply(), ctState(ctRelated), isLocal(),
		)),
		// Without this, an unprivileged task forges "inbound" connections:
		// IPV6_FREEBIND sends to itself from any address, and conntrack then
		// takes what it sends to that address for replies.
		{"fib saddr type != local drop", []expr{
			fibType(unix.NFTA_FIB_F_SADDR), compare(unix.NFT_CMP_NEQ, host32(unix.RTN_LOCAL)...), verdict(nfDrop, ""),
		}},
		// Before metadata: some clouds run their resolver at that address.
		accept("ip daddr . meta l4proto . th dport @dns4", append(loadEndpoint(true), lookup(reg32, "dns4"))),
		accept("ip6 daddr . meta l4proto . th dport @dns6", append(loadEndpoint(false), lookup(reg32, "dns6"))),
		// Before replies and before every range that somebody may allow.
		refuse("ip daddr @metadata4", append(loadDaddr(true), lookup(reg, "metadata4"))),
		refuse("ip6 daddr @metadata6", append(loadDaddr(false), lookup(reg, "metadata6"))),
		// By address type, not by interface: after a redirect in the output
		// hook the packet still carries the old interface.
		accept("fib daddr type local", isLocal()),
		// Only the reply direction: what the task opened itself is judged
		// packet by packet, so a policy that tightens bites at once, and an
		// expectation of a conntrack helper opens nothing.
		accept("ct direction reply ct state established,related", slices.Concat(
			isReply(), ctState(ctEstablished|ctRelated),
		)),
	}
	for _, m := range metadataTable() {
		if m.inbound {
			a := netip.MustParseAddr(m.addr)
			rules = append(rules, refuse("ip daddr "+m.addr, inPrefix(netip.PrefixFrom(a, a.BitLen()))))
		}
	}
	rules = append(rules,
		// Source routes name the real destination where no rule looks: IPv4
		// options and routing headers are open to unprivileged sockets.
		refuse("ip hdrlength > 5", append(isFamily(true),
			payload(reg, l3Base, 0, 1), mask(0x0f), compare(unix.NFT_CMP_GT, 5))),
		refuse("exthdr rt exists", append(isFamily(false), routingHeader(), equal(1))),
	)
	// A single address is meant even if it is a gateway (a service on the
	// host); a range contains its gateways by accident.
	rules = append(rules, acceptPrefixes(allow, netip.Prefix.IsSingleIP)...)
	rules = append(rules,
		// Before peers, whose subnet contains them; also where they're public.
		refuse("ip daddr @hosts4", append(loadDaddr(true), lookup(reg, "hosts4"))),
		refuse("ip6 daddr @hosts6", append(loadDaddr(false), lookup(reg, "hosts6"))),
	)
	rules = append(rules, acceptPrefixes(allow, func(p netip.Prefix) bool { return !p.IsSingleIP() })...)
	rules = append(rules,
		accept("ip daddr @peers4", append(loadDaddr(true), lookup(reg, "peers4"))),
		accept("ip6 daddr @peers6", append(loadDaddr(false), lookup(reg, "peers6"))),
		refuse("ip daddr @special4", append(loadDaddr(true), lookup(reg, "special4"))),
		refuse("ip6 daddr @special6", append(loadDaddr(false), lookup(reg, "special6"))),
		rule{"accept", []expr{verdict(nfAccept, "")}},
	)
	return chain{name: "engine" + suffix(allow), hook: hook{name: "output", num: unix.NF_INET_LOCAL_OUT}, rules: rules}
}

func acceptPrefixes(allow []netip.Prefix, which func(netip.Prefix) bool) []rule {
	var rules []rule
	for _, p := range allow {
		if !which(p) {
			continue
		}
		family, text := "ip6", p.String()
		if p.Addr().Is4() {
			family = "ip"
		}
		if p.IsSingleIP() { // as nft prints it
			text = p.Addr().String()
		}
		rules = append(rules, accept(family+" daddr "+text, inPrefix(p)))
	}
	return rules
}

// suffix gives policies that differ chains that differ: where containers with
// several policies share a namespace, all of their chains stay hooked, and a
// packet must pass every one of them.
func suffix(allow []netip.Prefix) string {
	if len(allow) == 0 {
		return ""
	}
	h := fnv.New64a()
	for _, p := range allow {
		_, _ = h.Write([]byte(p.String() + " "))
	}
	return "-" + strconv.FormatUint(h.Sum64(), 16)
}

const (
	nfDrop   = 0
	nfAccept = 1
)

func accept(match string, exprs []expr) rule {
	return rule{match + " accept", append(exprs, verdict(nfAccept, ""))}
}

func refuse(match string, exprs []expr) rule {
	text := "goto " + refuseChain
	if match != "" {
		text = match + " " + text
	}
	return rule{text, append(exprs, verdict(unix.NFT_GOTO, refuseChain))}
}

func isReply() []expr {
	return []expr{ct(unix.NFT_CT_DIRECTION), equal(ctReply)}
}

func isLocal() []expr {
	return []expr{fibType(unix.NFTA_FIB_F_DADDR), equal(host32(unix.RTN_LOCAL)...)}
}
