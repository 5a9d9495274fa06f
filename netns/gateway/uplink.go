package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// uplink hears of changes of the network that the gateway dials through: an engine may take a network away, and no reset
// ever says so to the connections that went out by it. They would be waited for until the kernel gives up, a quarter of
// an hour later.
type uplink struct {
	file *os.File
}

// openUplink subscribes to changes in the calling process's network namespace.
func openUplink() (*uplink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	const groups = unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return &uplink{os.NewFile(uintptr(fd), "uplink")}, nil
}

// change is one thing that happened to the network.
type change struct {
	// gone is an address that was taken away.
	gone netip.Addr
	// moved says that the way out may be another one.
	moved bool
}

// watch calls changed for each change until ctx ends. It closes the socket.
func (u *uplink) watch(ctx context.Context, changed func(change)) error {
	return hearKernel(ctx, u.file, func() { changed(change{moved: true}) }, func(b []byte) {
		for _, c := range parseChanges(b) {
			changed(c)
		}
	})
}

// hearKernel hands on what the kernel says on a netlink socket that does not block, datagram by datagram, until ctx ends;
// missed is called where it had more to say than there was room for. It closes the socket.
func hearKernel(ctx context.Context, f *os.File, missed func(), heard func([]byte)) error {
	defer context.AfterFunc(ctx, func() { f.Close() })()
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, 16<<10) // the kernel makes none that is larger
	for {
		var n int
		var from unix.Sockaddr
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			n, from, rerr = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(rerr, unix.EAGAIN)
		})
		switch nl, ok := from.(*unix.SockaddrNetlink); {
		case err != nil:
			return err
		case errors.Is(rerr, unix.ENOBUFS):
			missed()
		case rerr != nil:
			return os.NewSyscallError("recvfrom", rerr)
		case ok && nl.Pid == 0: // not from another process with power over this network
			heard(buf[:n])
		}
	}
}

// parseChanges reads the messages of one datagram. What is said of links between neighbours alone is left out: each
// container that starts on a host adds and removes such addresses.
func parseChanges(b []byte) []change {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return nil
	}
	var out []change
	for i := range messages {
		m := &messages[i]
		switch m.Header.Type {
		case unix.RTM_DELADDR:
			if a := deletedAddress(m); a.IsValid() && !a.IsLinkLocalUnicast() {
				out = append(out, change{gone: a, moved: true})
			}
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			const prefixLength, table = 1, 4 // in struct rtmsg
			if len(m.Data) >= unix.SizeofRtMsg && m.Data[prefixLength] == 0 && m.Data[table] == unix.RT_TABLE_MAIN {
				out = append(out, change{moved: true})
			}
		}
	}
	return out
}

// deletedAddress prefers IFA_LOCAL: IFA_ADDRESS is the peer's on a point-to-point link.
func deletedAddress(m *syscall.NetlinkMessage) netip.Addr {
	attrs, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return netip.Addr{}
	}
	var out netip.Addr
	for _, a := range attrs {
		if a.Attr.Type == unix.IFA_LOCAL || a.Attr.Type == unix.IFA_ADDRESS && !out.IsValid() {
			out, _ = netip.AddrFromSlice(a.Value)
		}
	}
	return out
}

// networkChanged gives up what can't be answered any more. The task hears of it at once, and connects again.
func (g *Gateway) networkChanged(c change) {
	if c.moved {
		g.web.closeIdle()
	}
	if !c.gone.IsValid() {
		return
	}
	g.web.outward.closeFrom(c.gone)
	for _, l := range g.loops {
		l.do(func() { l.lose(c.gone) })
	}
}

// lose resets the flows that have this address on this side.
func (l *loop) lose(a netip.Addr) {
	for _, f := range l.flows {
		if f != nil && f.opening == nil && localAddressFD(f.upstream.fd) == a {
			l.finish(f, true)
		}
	}
}

// outward are the connections of web, which its transports keep for further requests.
type outward struct {
	mu    sync.Mutex
	conns map[*outwardConn]struct{}
}

type outwardConn struct {
	*net.TCPConn
	all *outward
}

// add keeps account of a connection until it is closed.
func (o *outward) add(c *net.TCPConn) net.Conn {
	out := &outwardConn{c, o}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conns == nil {
		o.conns = map[*outwardConn]struct{}{}
	}
	o.conns[out] = struct{}{}
	return out
}

// Close implements net.Conn.
func (c *outwardConn) Close() error {
	c.all.mu.Lock()
	delete(c.all.conns, c)
	c.all.mu.Unlock()
	return c.TCPConn.Close()
}

// closeFrom closes those that have this address on this side.
func (o *outward) closeFrom(a netip.Addr) {
	o.mu.Lock()
	var lost []*outwardConn
	for c := range o.conns {
		if localAddress(c.TCPConn) == a {
			lost = append(lost, c)
		}
	}
	o.mu.Unlock()
	for _, c := range lost {
		c.Close()
	}
}

// addrPortOf is what an address of a TCP connection says; the zero value for any other.
func addrPortOf(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok {
		ap := tcp.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// localAddressFD is localAddress of a descriptor.
func localAddressFD(fd int) netip.Addr {
	own, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}
	}
	switch a := own.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr).Unmap()
	}
	return netip.Addr{}
}

func localAddress(c net.Conn) netip.Addr {
	return addrPortOf(c.LocalAddr()).Addr().WithZone("")
}
