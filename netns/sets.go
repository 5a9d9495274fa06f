package netns

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// set is a named nftables set. Static sets are filled by Install, dynamic
// ones by Finalize.
type set struct {
	name string
	key  setKey
	// sizeMax is how many elements fit; it lets the kernel choose a fixed
	// table instead of a resizable one. 0 for intervals.
	sizeMax  uint32
	interval bool
	dynamic  bool
	elements []element
}

// setKey is a key type: nft's number of it (for nft's listing alone), its
// length in bytes and its name.
type setKey struct {
	id, length uint32
	name       string
}

// Numbers of nftables' enum datatypes; six bits each when concatenated.
func keyAddr4() setKey  { return setKey{7, 4, "ipv4_addr"} }
func keyAddr6() setKey  { return setKey{8, 16, "ipv6_addr"} }
func keyICMPv6() setKey { return setKey{29, 1, "icmpv6_type"} }
func keyEndpoint4() setKey {
	return setKey{7<<12 | 12<<6 | 13, 12, "ipv4_addr . inet_proto . inet_service"}
}

func keyEndpoint6() setKey {
	return setKey{8<<12 | 12<<6 | 13, 24, "ipv6_addr . inet_proto . inet_service"}
}

// element is a key, or with an end (exclusive, nil for "to the last") the
// start of an interval. Its text is made when it is asked for: that costs more
// than encoding it.
type element struct {
	key, end []byte
	text     func() string
}

// dynamicSizeMax bounds each of the sets that Finalize fills.
const dynamicSizeMax = 256

func engineSets() []set {
	special4, special6 := specialRanges()
	var metadata4, metadata6 []netip.Addr
	for _, m := range metadataTable() {
		switch a := netip.MustParseAddr(m.addr); {
		case m.inbound: // a rule of its own, after replies
		case a.Is4():
			metadata4 = append(metadata4, a)
		default:
			metadata6 = append(metadata6, a)
		}
	}
	return append([]set{
		neighbourSet(),
		addrSet("metadata4", keyAddr4(), metadata4),
		addrSet("metadata6", keyAddr6(), metadata6),
		rangeSet("special4", keyAddr4(), special4),
		rangeSet("special6", keyAddr6(), special6),
	}, attachedSets(&attached{})...)
}

// neighbourSet has what a host must send on an IPv6 link: listener report and
// done, router and neighbour solicitation, neighbour advertisement, MLDv2
// report. Source: RFC 4890, 4.4.1.
func neighbourSet() set {
	types := []struct {
		value byte
		name  string
	}{
		{131, "mld-listener-report"},
		{132, "mld-listener-done"},
		{133, "nd-router-solicit"},
		{135, "nd-neighbor-solicit"},
		{136, "nd-neighbor-advert"},
		{143, "mld2-listener-report"},
	}
	s := set{name: "neighbour", key: keyICMPv6(), sizeMax: uint32(len(types))}
	for _, t := range types {
		s.elements = append(s.elements, element{key: []byte{t.value}, text: func() string { return t.name }})
	}
	return s
}

// attachedSets are the dynamic sets for what the engine attached. Finalize
// replaces all of them in one transaction.
func attachedSets(a *attached) []set {
	peers4, peers6 := a.peerRanges()
	hosts4, hosts6 := splitFamilies(a.refused())
	dns4, dns6 := splitFamilies(a.resolvers)
	sets := []set{
		endpointSet("dns4", keyEndpoint4(), dns4),
		endpointSet("dns6", keyEndpoint6(), dns6),
		addrSet("hosts4", keyAddr4(), hosts4),
		addrSet("hosts6", keyAddr6(), hosts6),
		rangeSet("peers4", keyAddr4(), peers4),
		rangeSet("peers6", keyAddr6(), peers6),
	}
	for i := range sets {
		sets[i].dynamic = true
		if !sets[i].interval {
			sets[i].sizeMax = dynamicSizeMax
		}
	}
	return sets
}

func addrSet(name string, key setKey, addrs []netip.Addr) set {
	s := set{name: name, key: key, sizeMax: uint32(len(addrs))}
	for _, a := range addrs {
		s.elements = append(s.elements, element{key: a.AsSlice(), text: a.String})
	}
	return s
}

func rangeSet(name string, key setKey, ranges []addrRange) set {
	s := set{name: name, key: key, interval: true}
	for _, r := range ranges {
		e := element{key: r.from.AsSlice(), text: r.String}
		if end := r.to.Next(); end.IsValid() {
			e.end = end.AsSlice()
		}
		s.elements = append(s.elements, e)
	}
	return s
}

// endpointSet has port 53 of each address, by TCP and by UDP.
func endpointSet(name string, key setKey, addrs []netip.Addr) set {
	const port = 53
	s := set{name: name, key: key}
	for _, a := range addrs {
		for _, proto := range []struct {
			value byte
			name  string
		}{{unix.IPPROTO_TCP, "tcp"}, {unix.IPPROTO_UDP, "udp"}} {
			s.elements = append(s.elements, element{
				key:  append(a.AsSlice(), proto.value, 0, 0, 0, 0, port, 0, 0),
				text: func() string { return a.String() + " . " + proto.name + " . 53" },
			})
		}
	}
	return s
}

func splitFamilies(in []netip.Addr) (v4, v6 []netip.Addr) {
	for _, a := range in {
		if a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	slices.SortFunc(v4, netip.Addr.Compare)
	slices.SortFunc(v6, netip.Addr.Compare)
	return slices.Compact(v4), slices.Compact(v6)
}
