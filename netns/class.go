package netns

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
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
	known := classes()
	if slices.Contains(known.metadata, a) {
		return ClassMetadata
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
	table := known.special6
	if a.Is4() {
		table = known.special4
	}
	for _, s := range table {
		if s.from.Compare(a) <= 0 && a.Compare(s.to) <= 0 {
			return s.class
		}
	}
	return ClassPublic
}

// classes are the tables of ranges.go, parsed: a gateway judges the address of every connection by them.
var classes = sync.OnceValue(func() (t struct { //nolint:gochecknoglobals // made once, when somebody asks
	metadata           []netip.Addr
	special4, special6 []classRange
},
) {
	for _, m := range metadataTable() {
		t.metadata = append(t.metadata, netip.MustParseAddr(m.addr))
	}
	t.special4, t.special6 = classRanges(specialTable4()), classRanges(specialTable6())
	return t
})

// classRange is a range of addresses of one class.
type classRange struct {
	addrRange
	class Class
}

func classRanges(table []special) []classRange {
	out := make([]classRange, 0, len(table))
	for _, s := range table {
		class := ClassReserved
		if strings.HasPrefix(s.source, "carrier") {
			class = ClassPrivate
		}
		out = append(out, classRange{mustRange(s.ranges), class})
	}
	return out
}

// embedded returns the IPv4 address behind NAT64's well-known prefix. Source: RFC 6052, 2.1.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() || !netip.PrefixFrom(netip.MustParseAddr(nat64), 96).Contains(a) {
		return netip.Addr{}, false
	}
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:])), true
}
