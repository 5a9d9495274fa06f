package netns

import (
	"cmp"
	"net/netip"
	"slices"
)

// metadata is one address at which a cloud hands out credentials or
// instance data to whoever asks.
type metadata struct {
	addr string
	// dns: the cloud documents a recursive resolver at the same address, so
	// that resolv.conf may name it. Port 53 alone is then opened, and only if
	// resolv.conf does name it.
	dns bool
	// inbound: the cloud's health probes come from this address, so replies to
	// its connections pass, while connections to it never do.
	inbound bool
	source  string
}

// metadataTable lists the metadata services of all clouds known to us. What
// lies in a private range would be refused without it too; the table is what
// keeps it refused when a peer subnet or a cluster range covers it.
func metadataTable() []metadata {
	return []metadata{
		{addr: "169.254.169.254", dns: true, source: "AWS, Azure, Google (resolver too), Oracle (resolver too), OpenStack, DigitalOcean, Hetzner, Linode, Vultr, IBM, Huawei"},
		{addr: "169.254.169.252", source: "Google GKE metadata server on the node"},
		{addr: "169.254.170.2", source: "AWS ECS task metadata and credentials"},
		{addr: "169.254.170.23", source: "AWS EKS Pod Identity agent"},
		{addr: "169.254.42.42", source: "Scaleway"},
		{addr: "169.254.0.23", source: "Tencent Cloud"},
		{addr: "100.100.100.200", source: "Alibaba Cloud"},
		{addr: "100.96.0.96", source: "Volcengine"},
		{addr: "192.0.0.192", source: "Oracle Cloud Classic"},
		{addr: "168.63.129.16", dns: true, inbound: true, source: "Azure wire server: certificates and goal state by HTTP; also Azure's resolver and the source of load balancer probes"},
		{addr: "fd00:ec2::254", source: "AWS"},
		{addr: "fd00:ec2::23", source: "AWS EKS Pod Identity agent"},
		{addr: "fd20:ce::254", dns: true, source: "Google, IPv6 form of 169.254.169.254"},
		{addr: "fd00:42::42", source: "Scaleway"},
		{addr: "fd00:a9fe:a9fe::1", source: "Linode"},
		{addr: "fe80::a9fe:a9fe", source: "OpenStack, Linode, Hetzner"},
	}
}

// addrRange is from..to, both included, both of one family.
type addrRange struct {
	from, to netip.Addr
}

// special is a range that isn't a public address of somebody else's machine.
type special struct {
	ranges string // prefix, or first-last
	source string
}

// specialTable4 is the IANA IPv4 Special-Purpose Address Registry (RFC 6890
// and updates) plus multicast, without the three blocks that are globally
// reachable services (AS112, AMT).
func specialTable4() []special {
	return []special{
		{"0.0.0.0/8", "this network, RFC 791"},
		{"10.0.0.0/8", "private, RFC 1918"},
		{"100.64.0.0/10", "carrier NAT, RFC 6598"},
		{"127.0.0.0/8", "loopback of somebody else, RFC 1122"},
		{"169.254.0.0/16", "link-local, RFC 3927"},
		{"172.16.0.0/12", "private, RFC 1918"},
		{"192.0.0.0/24", "IETF protocols, DS-Lite, RFC 6890"},
		{"192.0.2.0/24", "documentation, RFC 5737"},
		{"192.88.99.0/24", "6to4 relays, RFC 7526"},
		{"192.168.0.0/16", "private, RFC 1918"},
		{"198.18.0.0/15", "benchmarks, RFC 2544"},
		{"198.51.100.0/24", "documentation, RFC 5737"},
		{"203.0.113.0/24", "documentation, RFC 5737"},
		{"224.0.0.0/4", "multicast, RFC 5771"},
		{"240.0.0.0/4", "reserved and broadcast, RFC 1112"},
	}
}

// specialTable6 is everything outside global unicast (2000::/3, RFC 4291)
// but NAT64's well-known prefix, and what isn't public inside it: an address
// type invented later is refused until it is listed.
func specialTable6() []special {
	return []special{
		{"::-64:ff9a:ffff:ffff:ffff:ffff:ffff:ffff", "loopback of somebody else, IPv4-mapped, IPv4-compatible, translated"},
		{"64:ff9b::1:0:0-1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "local NAT64 64:ff9b:1::/48 (RFC 8215), discard 100::/64, unassigned"},
		{"2001::/23", "IETF protocols: Teredo, benchmarks, ORCHID, RFC 2928"},
		{"2001:db8::/32", "documentation, RFC 3849"},
		{"2002::/16", "6to4 embeds any IPv4 address, RFC 7526"},
		{"3fff::/20", "documentation, RFC 9637"},
		{"4000::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "unassigned, SRv6, unique local, link-local, multicast"},
	}
}

// nat64 is the one prefix outside 2000::/3 that leads to public addresses;
// the IPv4 address is in its last four bytes. Source: RFC 6052.
const nat64 = "64:ff9b::"

// specialRanges returns what ModeEngine refuses by address, merged and sorted.
func specialRanges() (v4, v6 []addrRange) {
	for _, s := range specialTable4() {
		v4 = append(v4, mustRange(s.ranges))
	}
	for _, s := range specialTable6() {
		v6 = append(v6, mustRange(s.ranges))
	}
	embedded := slices.Clone(v4)
	for _, m := range metadataTable() {
		if a := netip.MustParseAddr(m.addr); a.Is4() {
			embedded = append(embedded, addrRange{a, a})
		}
	}
	for _, r := range embedded {
		v6 = append(v6, addrRange{inNAT64(r.from), inNAT64(r.to)})
	}
	return mergeRanges(v4), mergeRanges(v6)
}

func inNAT64(a netip.Addr) netip.Addr {
	b := netip.MustParseAddr(nat64).As16()
	v4 := a.As4()
	copy(b[12:], v4[:])
	return netip.AddrFrom16(b)
}

// mustRange parses the tables of this file: text that isn't a range is a
// mistake in them.
func mustRange(s string) addrRange {
	for i := range s {
		if s[i] == '-' {
			return addrRange{netip.MustParseAddr(s[:i]), netip.MustParseAddr(s[i+1:])}
		}
	}
	return prefixRange(netip.MustParsePrefix(s))
}

func prefixRange(p netip.Prefix) addrRange {
	return addrRange{p.Masked().Addr(), lastAddr(p)}
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := range b {
		host := min(max(8*(i+1)-p.Bits(), 0), 8)
		b[i] |= byte(1<<host - 1)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// mergeRanges sorts and joins what overlaps or touches: the kernel's interval
// sets refuse overlaps.
func mergeRanges(in []addrRange) []addrRange {
	in = slices.Clone(in)
	slices.SortFunc(in, func(a, b addrRange) int {
		return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to))
	})
	var out []addrRange
	for _, r := range in {
		if n := len(out); n > 0 {
			last := &out[n-1]
			if next := last.to.Next(); !next.IsValid() || r.from.Compare(next) <= 0 {
				if r.to.Compare(last.to) > 0 {
					last.to = r.to
				}
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

// String writes the range as nft does: a prefix where it is one.
func (r addrRange) String() string {
	if r.from == r.to {
		return r.from.String()
	}
	for bits := range r.from.BitLen() {
		p := netip.PrefixFrom(r.from, bits)
		if p.Masked().Addr() == r.from && lastAddr(p) == r.to {
			return p.String()
		}
	}
	return r.from.String() + "-" + r.to.String()
}
