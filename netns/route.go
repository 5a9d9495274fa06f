package netns

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// dumpAttempts bounds the retries of a dump that a change interrupted.
const dumpAttempts = 5

// rtextFilterSkipStats keeps counters out of link dumps (linux/rtnetlink.h).
const rtextFilterSkipStats = 1 << 3

// dump asks for all objects of a kind (RTM_GETADDR, RTM_GETLINK, RTM_GETROUTE)
// of both families and appends what parse makes of each. header is the zeroed
// fixed header of the request.
func dump[T any](c *conn, request uint16, header []byte, parse func(body []byte, out []T) []T) ([]T, error) {
	for range dumpAttempts {
		var out []T
		complete, err := c.dumpOnce(request, header, func(body []byte) { out = parse(body, out) })
		if err != nil {
			return nil, err
		}
		if complete {
			return out, nil
		}
	}
	return nil, fmt.Errorf("dump %d: changed during each of %d attempts", request, dumpAttempts)
}

// dumpOnce reports false if the answer isn't a consistent snapshot.
func (c *conn) dumpOnce(request uint16, header []byte, visit func(body []byte)) (bool, error) {
	ne := binary.NativeEndian
	p := ne.AppendUint32(nil, uint32(nlHeaderLen+len(header)))
	p = ne.AppendUint16(p, request)
	p = ne.AppendUint16(p, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	p = append(p, make([]byte, 8)...) // sequence, port
	if err := c.send(append(p, header...)); err != nil {
		return false, err
	}
	done, complete := false, true
	for !done {
		err := c.receive(func(m message) error {
			complete = complete && m.flags&unix.NLM_F_DUMP_INTR == 0
			switch m.typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				done = true
				if e := m.errno(); e != 0 {
					return e
				}
			default:
				visit(m.body)
			}
			return nil
		})
		if err != nil {
			return false, fmt.Errorf("dump %d: %w", request, err)
		}
	}
	return complete, nil
}

// addrs returns the addresses of the namespace.
func (c *conn) addrs() ([]linkAddr, error) {
	return dump(c, unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg), func(body []byte, out []linkAddr) []linkAddr {
		if a, ok := parseAddr(body); ok {
			out = append(out, a)
		}
		return out
	})
}

// parseAddr reads struct ifaddrmsg and its attributes.
func parseAddr(b []byte) (linkAddr, bool) {
	if len(b) < unix.SizeofIfAddrmsg {
		return linkAddr{}, false
	}
	var local, subnet netip.Addr
	eachAttr(b[unix.SizeofIfAddrmsg:], func(typ uint16, data []byte) {
		switch typ {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(data)
		case unix.IFA_ADDRESS:
			subnet, _ = netip.AddrFromSlice(data)
		}
	})
	if !subnet.IsValid() {
		subnet = local
	}
	if !local.IsValid() { // IPv6 without a peer has IFA_ADDRESS alone
		local = subnet
	}
	p := netip.PrefixFrom(subnet, int(b[1]))
	return linkAddr{binary.NativeEndian.Uint32(b[4:]), local, p}, p.IsValid()
}

// tuns returns the link indexes of the namespace's tun and tap devices.
func (c *conn) tuns() ([]uint32, error) {
	ne := binary.NativeEndian
	h := make([]byte, unix.SizeofIfInfomsg, unix.SizeofIfInfomsg+8)
	h = ne.AppendUint16(h, 8)
	h = ne.AppendUint16(h, unix.IFLA_EXT_MASK)
	h = ne.AppendUint32(h, rtextFilterSkipStats)
	return dump(c, unix.RTM_GETLINK, h, func(body []byte, out []uint32) []uint32 {
		if len(body) >= unix.SizeofIfInfomsg && linkKind(body[unix.SizeofIfInfomsg:]) == "tun" {
			out = append(out, ne.Uint32(body[4:]))
		}
		return out
	})
}

func linkKind(attrs []byte) (kind string) {
	eachAttr(attrs, func(typ uint16, info []byte) {
		if typ != unix.IFLA_LINKINFO {
			return
		}
		eachAttr(info, func(typ uint16, data []byte) {
			if typ == unix.IFLA_INFO_KIND && len(data) > 0 {
				kind = unix.ByteSliceToString(data)
			}
		})
	})
	return kind
}

// gateways returns the next hops of all routes of all tables.
func (c *conn) gateways() ([]netip.Addr, error) {
	return dump(c, unix.RTM_GETROUTE, make([]byte, unix.SizeofRtMsg), func(body []byte, out []netip.Addr) []netip.Addr {
		if len(body) >= unix.SizeofRtMsg {
			out = appendGateways(out, body[unix.SizeofRtMsg:])
		}
		return out
	})
}

// appendGateways reads the attributes of a route, or of one next hop of a
// multipath route, which has the same ones.
func appendGateways(out []netip.Addr, attrs []byte) []netip.Addr {
	eachAttr(attrs, func(typ uint16, data []byte) {
		switch typ {
		case unix.RTA_GATEWAY:
			if a, ok := netip.AddrFromSlice(data); ok {
				out = append(out, a)
			}
		case unix.RTA_VIA: // struct rtvia: family, then the address
			if len(data) > 2 {
				if a, ok := netip.AddrFromSlice(data[2:]); ok {
					out = append(out, a)
				}
			}
		case unix.RTA_MULTIPATH:
			for len(data) >= unix.SizeofRtNexthop {
				n := int(binary.NativeEndian.Uint16(data))
				if n < unix.SizeofRtNexthop || n > len(data) {
					return
				}
				out = appendGateways(out, data[unix.SizeofRtNexthop:n])
				data = data[min((n+3)&^3, len(data)):]
			}
		}
	})
	return out
}
