package netns

import (
	"net/netip"
	"strings"
)

// Class says what kind of address something is, for who judges single addresses and not packets.
type Class string

// The classes. Only public addresses are somebody else's machine on the Internet.
const (
	ClassPublic    Class = "public"
	ClassPrivate   Class = "private" // RFC 1918, carrier NAT, unique local
	ClassMetadata  Class = "metadata"
	ClassLoopback  Class = "loopback"
	ClassLinkLocal Class = "link-local"
	ClassMulticast Class = "multicast"
	ClassReserved  Class = "reserved" // unassigned, documentation, tunnels, translation prefixes
)

// ClassOf judges an address by the tables that ModeEngine uses. IPv4 inside IPv6 (mapped, or behind NAT64's well-known
// prefix) is judged as the IPv4 address that it stands for; other embeddings are reserved. An invalid address is reserved.
func ClassOf(a netip.Addr) Class {
	a = a.Unmap().WithZone("")
	if v4, ok := embedded(a); ok {
		a = v4
	}
	for _, m := range metadataTable() {
		if netip.MustParseAddr(m.addr) == a {
			return ClassMetadata
		}
	}
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return ClassReserved
	case a.IsLoopback():
		return ClassLoopback
	case a.IsMulticast():
		return ClassMulticast
	case a.IsLinkLocalUnicast():
		return ClassLinkLocal
	case a.IsPrivate(): // unique local, too
		return ClassPrivate
	}
	table := specialTable6()
	if a.Is4() {
		table = specialTable4()
	}
	for _, s := range table {
		if r := mustRange(s.ranges); r.from.Compare(a) <= 0 && a.Compare(r.to) <= 0 {
			if strings.HasPrefix(s.source, "carrier") {
				return ClassPrivate
			}
			return ClassReserved
		}
	}
	return ClassPublic
}

// embedded returns the IPv4 address behind NAT64's well-known prefix. Source: RFC 6052, 2.1.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !netip.PrefixFrom(netip.MustParseAddr(nat64), 96).Contains(a) {
		return netip.Addr{}, false
	}
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:])), true
}
