package netns

import (
	"net/netip"
	"slices"
)

// attached is what Finalize found out about a namespace's links, and what its
// sets are made of.
type attached struct {
	peers     []netip.Prefix // subnets reached link by link
	hosts     []netip.Addr   // in or beside them: the host and routers, refused
	groups    []netip.Addr   // in them: broadcast, any router; refused
	resolvers []netip.Addr   // reached on port 53 alone
}

// facts are the kernel's answers that planAttached judges.
type facts struct {
	addrs    []linkAddr
	gateways []netip.Addr // next hops of all routes
	tuns     []uint32     // link indexes of tun and tap devices
	hostIPs  []netip.Addr // addresses of the namespace that Finalize runs in
}

// linkAddr is an address of a link. For a point-to-point link, local and the
// prefix's address differ.
type linkAddr struct {
	index  uint32
	local  netip.Addr
	prefix netip.Prefix
}

// loopbackIndex is lo's: it's the first device of every network namespace.
const loopbackIndex = 1

// planAttached decides which addresses are peers and which are the host. It
// makes no syscalls.
//
// Peers are the subnets of the addresses on real links, without link-local
// ones. A tun or tap device has no peers: behind it is a user-mode stack that
// copies the host's own subnet (pasta) or invents one (slirp4netns).
//
// The host is every next hop, every address of the caller's namespace that
// lies in a subnet, the subnet's own broadcast and router anycast addresses,
// and, where a subnet has no host known by then, its first address: engines
// give the bridge of an internal or second network that address, and no route
// names it.
func planAttached(f facts, nameservers []netip.Addr) *attached {
	a := &attached{}
	own := map[netip.Addr]bool{}
	for _, la := range f.addrs {
		own[la.local] = true
	}
	for _, g := range f.gateways {
		a.hosts = appendNew(a.hosts, g)
	}
	for _, la := range f.addrs {
		if la.index == loopbackIndex {
			continue
		}
		if la.prefix.IsSingleIP() {
			if peer := la.prefix.Addr(); peer != la.local {
				a.hosts = appendNew(a.hosts, peer)
			}
			continue
		}
		if slices.Contains(f.tuns, la.index) || !isSubnet(la.prefix) {
			continue
		}
		if la.prefix.Bits() == la.prefix.Addr().BitLen()-1 { // RFC 3021, 6164: a link of two
			first := la.prefix.Masked().Addr()
			a.hosts = appendNew(appendNew(a.hosts, first), first.Next())
			continue
		}
		a.addSubnet(la.prefix.Masked(), f.hostIPs, own)
	}
	a.resolvers = append(a.resolvers, a.hosts...)
	for _, n := range nameservers {
		if n = n.Unmap().WithZone(""); mayResolve(n) {
			a.resolvers = append(a.resolvers, n)
		}
	}
	// A host address that is a metadata service's too stays refused.
	a.resolvers = slices.DeleteFunc(a.resolvers, func(r netip.Addr) bool { return !mayResolve(r) })
	return a
}

func appendNew(list []netip.Addr, a netip.Addr) []netip.Addr {
	if a = a.Unmap().WithZone(""); a.IsValid() && !slices.Contains(list, a) {
		list = append(list, a)
	}
	return list
}

func (a *attached) addSubnet(subnet netip.Prefix, hostIPs []netip.Addr, own map[netip.Addr]bool) {
	a.peers = append(a.peers, subnet)
	known := slices.ContainsFunc(a.hosts, subnet.Contains)
	for _, h := range hostIPs {
		if subnet.Contains(h) && !own[h] {
			a.hosts = appendNew(a.hosts, h)
			known = true
		}
	}
	if first := subnet.Addr().Next(); !known && !own[first] {
		a.hosts = appendNew(a.hosts, first)
	}
	a.groups = appendNew(a.groups, subnet.Addr())
	if subnet.Addr().Is4() {
		a.groups = appendNew(a.groups, lastAddr(subnet))
	}
}

// isSubnet says whether an address' prefix can hold peers.
func isSubnet(p netip.Prefix) bool {
	a := p.Addr()
	return p.Bits() > 0 && !a.IsLinkLocalUnicast() && !a.IsLoopback() && !a.IsMulticast() && !a.IsUnspecified()
}

// mayResolve says whether port 53 of a name server may be opened. Loopback
// needs no rule, and a metadata service is no resolver unless its cloud says
// that it is one.
func mayResolve(n netip.Addr) bool {
	if !n.IsValid() || n.IsUnspecified() || n.IsLoopback() || n.IsMulticast() {
		return false
	}
	for _, m := range metadataTable() {
		if netip.MustParseAddr(m.addr) == n {
			return m.dns
		}
	}
	return true
}

func (a *attached) peerRanges() (v4, v6 []addrRange) {
	for _, p := range a.peers {
		if p.Addr().Is4() {
			v4 = append(v4, prefixRange(p))
		} else {
			v6 = append(v6, prefixRange(p))
		}
	}
	return mergeRanges(v4), mergeRanges(v6)
}

// refused is what the subnets contain besides peers.
func (a *attached) refused() []netip.Addr { return slices.Concat(a.hosts, a.groups) }

// bounded cuts the lists to what the kernel's sets hold. Refused addresses
// must all fit, so too many of them is reported; resolvers beyond the limit
// stay refused.
func (a *attached) bounded() (*attached, bool) {
	hosts4, hosts6 := splitFamilies(a.refused())
	if len(hosts4) > dynamicSizeMax || len(hosts6) > dynamicSizeMax {
		return nil, false
	}
	b := *a
	b.resolvers = b.resolvers[:min(len(b.resolvers), dynamicSizeMax/2)]
	return &b, true
}
