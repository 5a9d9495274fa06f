package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// NameRanges are the addresses that stand for names inside a container: a range for benchmarks that no network routes
// (RFC 2544), and a unique local one of agentsafe's own.
func NameRanges() (v4, v6 netip.Prefix) {
	return netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("fd61:6773:6166:6500::/64")
}

// nameHost are the container's own addresses in these ranges. Without an address beside 127.0.0.1 the C library takes
// the host for one without a network, and answers questions for IPv4 addresses with an error (AI_ADDRCONFIG).
func nameHost() (v4, v6 netip.Addr) {
	return netip.MustParseAddr("198.19.255.254"), netip.MustParseAddr("fd61:6773:6166:6500:ffff::fffe")
}

// Addresses returns the addresses of ns, and whether one of them is on a link other than loopback.
func Addresses(ns *os.File) (own []netip.Addr, linked bool, err error) {
	route, err := dialIn(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, false, fmt.Errorf("read addresses: %w", err)
	}
	defer route.Close()
	list, err := route.addrs()
	if err != nil {
		return nil, false, fmt.Errorf("read addresses: %w", err)
	}
	for _, a := range list {
		if !a.local.IsLoopback() {
			own = append(own, a.local)
		}
		linked = linked || a.index != loopbackIndex
	}
	return own, linked, nil
}

// HostAddresses returns the addresses of the caller's own namespace but loopback's.
func HostAddresses() ([]netip.Addr, error) {
	route, err := dial(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("read addresses of the host: %w", err)
	}
	defer route.Close()
	list, err := route.addrs()
	if err != nil {
		return nil, fmt.Errorf("read addresses of the host: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		if !a.local.IsLoopback() {
			out = append(out, a.local)
		}
	}
	return out, nil
}

// RouteNames makes the addresses that stand for names local to ns, so that connecting to one of them reaches this
// namespace's own loopback, whatever an engine attached. With all, every other address is local as well: then nothing
// can leave, and whoever skips the question for a name meets the gateway, which says so. It returns the addresses that
// it gave to loopback. ipv6 is false where the namespace has none.
func RouteNames(ns *os.File, all, ipv6 bool) ([]netip.Addr, error) {
	route, err := dialIn(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("route names: %w", err)
	}
	defer route.Close()
	names4, names6 := NameRanges()
	host4, host6 := nameHost()
	type family struct {
		names netip.Prefix
		all   netip.Prefix
		host  netip.Addr
	}
	families := []family{{names4, netip.MustParsePrefix("0.0.0.0/0"), host4}}
	if ipv6 {
		families = append(families, family{names6, netip.MustParsePrefix("::/0"), host6})
	}
	var own []netip.Addr
	for _, f := range families {
		to := f.names
		if all {
			to = f.all
		}
		if err := route.addAddress(f.host); err != nil {
			return nil, fmt.Errorf("route names: add %s: %w", f.host, err)
		}
		if err := route.addLocal(to); err != nil {
			return nil, fmt.Errorf("route names: make %s local: %w", to, err)
		}
		own = append(own, f.host)
	}
	return own, nil
}

// addAddress gives loopback an address.
func (c *conn) addAddress(a netip.Addr) error {
	ne := binary.NativeEndian
	body := []byte{familyOf(a), byte(a.BitLen()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}
	body = ne.AppendUint32(body, loopbackIndex)
	body = appendAttr(body, unix.IFA_LOCAL, a.AsSlice())
	body = appendAttr(body, unix.IFA_ADDRESS, a.AsSlice())
	return c.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, body)
}

// addLocal adds `ip route add local PREFIX dev lo`.
func (c *conn) addLocal(p netip.Prefix) error {
	body := []byte{familyOf(p.Addr()), byte(p.Bits()), 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_LOCAL}
	body = append(body, 0, 0, 0, 0)
	if p.Bits() > 0 {
		body = appendAttr(body, unix.RTA_DST, p.Addr().AsSlice())
	}
	body = appendAttr(body, unix.RTA_OIF, host32(loopbackIndex))
	return c.request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, body)
}

func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func appendAttr(b []byte, typ uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// request sends one rtnetlink message and wants its acknowledgement.
func (c *conn) request(typ, flags uint16, body []byte) error {
	ne := binary.NativeEndian
	p := ne.AppendUint32(nil, uint32(nlHeaderLen+len(body)))
	p = ne.AppendUint16(p, typ)
	p = ne.AppendUint16(p, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	p = append(p, make([]byte, 8)...) // sequence, port
	if err := c.send(append(p, body...)); err != nil {
		return err
	}
	return c.acknowledged()
}

// GatewaySockets are what a gateway serves on, all in the container's namespace. The caller closes them.
type GatewaySockets struct {
	// TCP, DNS and DNSTCP have an entry for each family that the namespace has, IPv4 first.
	TCP, DNS, DNSTCP []*os.File
	TCPPort, DNSPort uint16
}

// Close closes all sockets.
func (s *GatewaySockets) Close() {
	for _, f := range s.Files() {
		f.Close()
	}
}

// Files returns all sockets: TCP, DNS, DNSTCP.
func (s *GatewaySockets) Files() []*os.File {
	var out []*os.File
	for _, list := range [][]*os.File{s.TCP, s.DNS, s.DNSTCP} {
		out = append(out, list...)
	}
	return out
}

const (
	listenBacklog  = 1024
	socketAttempts = 16
)

// OpenGatewaySockets opens the sockets on loopback of ns, at free ports. ns is as for Install.
func OpenGatewaySockets(ns *os.File) (*GatewaySockets, error) {
	s := &GatewaySockets{}
	err := errors.New("no free port")
	for range socketAttempts {
		if err = s.open(ns); err == nil || !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		s.Close()
		*s = GatewaySockets{}
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("open sockets of the gateway: %w", err)
	}
	return s, nil
}

func (s *GatewaySockets) open(ns *os.File) error {
	kinds := []struct {
		list   *[]*os.File
		typ    int
		port   *uint16
		listen bool
	}{
		{&s.TCP, unix.SOCK_STREAM, &s.TCPPort, true},
		{&s.DNS, unix.SOCK_DGRAM, &s.DNSPort, false},
		{&s.DNSTCP, unix.SOCK_STREAM, &s.DNSPort, true},
	}
	families := []int{unix.AF_INET, unix.AF_INET6}
	made := make([]*os.File, 0, len(families)*len(kinds))
	defer func() {
		for _, f := range made {
			f.Close()
		}
	}()
	// All in one visit: what is made inside stays there, and the rest can be done from here.
	err := within(ns, func() error {
		for _, family := range families {
			for _, kind := range kinds {
				fd, err := unix.Socket(family, kind.typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
				if family == unix.AF_INET6 && errors.Is(err, unix.EAFNOSUPPORT) {
					return nil // a kernel without IPv6
				}
				if err != nil {
					return os.NewSyscallError("socket", err)
				}
				made = append(made, os.NewFile(uintptr(fd), "gateway"))
			}
		}
		return nil
	})
	for i := 0; err == nil && len(made) > 0; i++ {
		kind, v6 := kinds[i%len(kinds)], i >= len(kinds)
		err = bindLoopback(made[0], v6, kind.port)
		if v6 && errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil // a namespace without IPv6
		}
		if err == nil && kind.listen {
			err = os.NewSyscallError("listen", unix.Listen(int(made[0].Fd()), listenBacklog))
		}
		if err == nil {
			*kind.list, made = append(*kind.list, made[0]), made[1:]
		}
	}
	return err
}

// bindLoopback binds a socket to loopback at *port, which it sets if it was 0.
func bindLoopback(f *os.File, v6 bool, port *uint16) (err error) {
	fd := int(f.Fd())
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: int(*port), Addr: [4]byte{127, 0, 0, 1}}
	if v6 {
		to = &unix.SockaddrInet6{Port: int(*port), Addr: [16]byte{15: 1}}
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, to))
	}
	if err != nil || *port != 0 {
		return err
	}
	bound, err := unix.Getsockname(fd)
	switch a := bound.(type) {
	case *unix.SockaddrInet4:
		*port = uint16(a.Port)
	case *unix.SockaddrInet6:
		*port = uint16(a.Port)
	}
	return err
}
