package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// dumpAttempts bounds the retries of a dump that a change interrupted.
const dumpAttempts = 5

// rtextFilterSkipStats keeps counters out of link dumps (linux/rtnetlink.h).
const rtextFilterSkipStats = 1 << 3

// dump asks for all objects of a kind (RTM_GETADDR, RTM_GETLINK, RTM_GETROUTE)
// of both families. header is the zeroed fixed header of the request.
func (c *conn) dump(request uint16, header []byte, visit func(m message)) error {
	for range dumpAttempts {
		var found []message
		complete, err := c.dumpOnce(request, header, &found)
		if err != nil {
			return err
		}
		if complete {
			for _, m := range found {
				visit(m)
			}
			return nil
		}
	}
	return fmt.Errorf("dump %d: changed during each of %d attempts", request, dumpAttempts)
}

// dumpOnce reports false if the answer isn't a consistent snapshot.
func (c *conn) dumpOnce(request uint16, header []byte, found *[]message) (bool, error) {
	ne := binary.NativeEndian
	p := ne.AppendUint32(nil, uint32(nlHeaderLen+len(header)))
	p = ne.AppendUint16(p, request)
	p = ne.AppendUint16(p, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	p = ne.AppendUint32(p, 0)
	p = ne.AppendUint32(p, 0)
	if err := c.send(append(p, header...)); err != nil {
		return false, err
	}
	done, complete := false, true
	for !done {
		// A buffer per datagram: the messages found point into it. The kernel
		// sizes its datagrams by the reader's buffer, from 8 to 32 KiB.
		err := c.receive(make([]byte, 32<<10), func(m message) error {
			complete = complete && m.flags&unix.NLM_F_DUMP_INTR == 0
			switch m.typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				done = true
				if e := m.errno(); e != 0 {
					return e
				}
			default:
				*found = append(*found, m)
			}
			return nil
		})
		if errors.Is(err, unix.EINTR) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("dump %d: %w", request, err)
		}
	}
	return complete, nil
}

// addrs returns the addresses of the namespace.
func (c *conn) addrs() ([]linkAddr, error) {
	var out []linkAddr
	err := c.dump(unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg), func(m message) {
		if a, ok := parseAddr(m.body); ok {
			out = append(out, a)
		}
	})
	return out, err
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

// tuns returns the tun and tap devices of the namespace by link index.
func (c *conn) tuns() (map[uint32]bool, error) {
	out := map[uint32]bool{}
	h := make([]byte, unix.SizeofIfInfomsg, unix.SizeofIfInfomsg+8)
	h = binary.NativeEndian.AppendUint16(h, 8)
	h = binary.NativeEndian.AppendUint16(h, unix.IFLA_EXT_MASK)
	h = binary.NativeEndian.AppendUint32(h, rtextFilterSkipStats)
	err := c.dump(unix.RTM_GETLINK, h, func(m message) {
		if len(m.body) < unix.SizeofIfInfomsg || linkKind(m.body[unix.SizeofIfInfomsg:]) != "tun" {
			return
		}
		out[binary.NativeEndian.Uint32(m.body[4:])] = true
	})
	return out, err
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
	var out []netip.Addr
	err := c.dump(unix.RTM_GETROUTE, make([]byte, unix.SizeofRtMsg), func(m message) {
		if len(m.body) >= unix.SizeofRtMsg {
			out = appendGateways(out, m.body[unix.SizeofRtMsg:])
		}
	})
	return out, err
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
