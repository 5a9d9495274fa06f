package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// listener is a socket that the rules of the namespace redirect connections to. Loops have it in common, each with a
// descriptor of its own.
type listener struct {
	fd int
	v6 bool
}

const (
	// acceptsAtOnce is how many connections are taken before the other ones have their turn.
	acceptsAtOnce = 32
	// deafFor is how long none is taken after running out of descriptors or memory, which must not end the gateway.
	deafFor = 20 * time.Millisecond
	// firstListener is what an event of the first listener has in place of a slot, the next one less, and so on.
	firstListener = -2
)

// takeListeners moves listening sockets out of the Go runtime's care, for this many loops.
func takeListeners(files []*os.File, loops int) ([][]listener, error) {
	out := make([][]listener, loops)
	var err error
	for _, f := range files {
		at, ferr := takeListener(f)
		if ferr != nil {
			err = errors.Join(err, ferr)
			continue
		}
		out[0] = append(out[0], at)
		for i := 1; i < loops; i++ {
			fd, derr := unix.FcntlInt(uintptr(at.fd), unix.F_DUPFD_CLOEXEC, 0)
			if derr != nil {
				err = errors.Join(err, os.NewSyscallError("dup", derr))
				continue
			}
			out[i] = append(out[i], listener{fd, at.v6})
		}
	}
	if err != nil {
		for _, list := range out {
			closeListeners(list)
		}
		return nil, fmt.Errorf("take over sockets: %w", err)
	}
	return out, nil
}

// takeListener takes one over. What it accepts has no delay of small segments.
func takeListener(f fdHolder) (listener, error) {
	fd, err := takeFD(f)
	if err != nil {
		return listener{}, err
	}
	own, err := unix.Getsockname(fd)
	if err == nil {
		err = unix.SetNonblock(fd, true) // whoever made it need not have
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err != nil {
		unix.Close(fd)
		return listener{}, fmt.Errorf("prepare a listening socket: %w", err)
	}
	_, v4 := own.(*unix.SockaddrInet4)
	return listener{fd, !v4}, nil
}

// listen has the loop accept for g until ctx ends. It owns the descriptors from here on.
func (l *loop) listen(ctx context.Context, g *Gateway, listeners []listener) {
	ok := l.do(func() {
		l.g, l.ctx, l.listeners = g, ctx, listeners
		l.hear(true)
	})
	if !ok {
		closeListeners(listeners)
	}
}

func closeListeners(list []listener) {
	for _, at := range list {
		unix.Close(at.fd)
	}
}

// hear puts the listeners among what is waited for, or takes them out.
func (l *loop) hear(on bool) {
	op := unix.EPOLL_CTL_DEL
	if on {
		op = unix.EPOLL_CTL_ADD
	}
	l.deafUntil = time.Time{}
	for i, at := range l.listeners {
		// Exclusive: one loop is woken, and that one first which has less to do.
		e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE, Fd: int32(firstListener - i)} //nolint:gosec // two
		if err := unix.EpollCtl(l.epoll, op, at.fd, &e); err != nil && on && !errors.Is(err, unix.EEXIST) {
			l.deafUntil = l.now.Add(deafFor) // no memory: the next attempt adds what is missing
		}
	}
	if !on {
		l.deafUntil = l.now.Add(deafFor)
	}
}

// accept takes connections off one listener.
func (l *loop) accept(at listener) {
	for range acceptsAtOnce {
		fd, err := acceptFD(at.fd)
		switch {
		case err == nil:
			l.receive(fd, at.v6)
		case errors.Is(err, unix.EAGAIN):
			return
		case !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.EINTR):
			l.hear(false)
			return
		}
	}
}

// receive judges one connection by where it goes.
func (l *loop) receive(fd int, v6 bool) {
	g := l.g
	dst, err := originalDestination(fd, v6)
	if err != nil {
		resetFD(fd)
		return
	}
	s := &session{g: g, begin: l.now, address: dst.Addr().String(), port: dst.Port(), server: dst, loop: l}
	s.flow = g.newFlow(s)
	s.flow.client.fd = fd
	name, named := g.names.lookup(dst.Addr())
	s.name = name
	d := g.judge(s, dst, "")
	if d.Allowed {
		d = g.open(s)
	}
	if !d.Allowed {
		s.flow, s.loop = nil, nil
		if s.conn, err = connOf(fd); err == nil {
			go g.refuse(s, nil, d)
		}
		return
	}
	f := s.flow
	switch {
	case named && strings.HasSuffix(name, internalZone):
		if l.register(f); l.handOver(f, s) {
			go g.web.take(s, nil)
		}
	case g.judge(s, dst, egress.Raw).Allowed:
		s.speaks(egress.Raw) // nothing inside is checked, so nothing is waited for
		l.open(f, &opening{s: s, dst: dst})
	case g.judge(s, dst, egress.SSH).Allowed:
		s.speaks(egress.SSH)
		g.guardSSH(f, s, dst, l.now)
		l.open(f, &opening{s: s, dst: dst})
	default:
		l.open(f, &opening{s: s, dst: dst, sniffing: true})
	}
}

// adopt has a loop go on with a session that had a connection of the Go runtime's: what its client says from here on is
// for s.name.
func (g *Gateway) adopt(s *session, port uint16) {
	l, f := g.loops[int(g.turn.Add(1))%len(g.loops)], g.newFlow(s)
	var err error
	f.client.fd, err = takeFD(s.conn)
	g.mu.Lock()
	s.conn, s.flow, s.loop = nil, f, l
	killed := s.killed
	g.mu.Unlock()
	o := &opening{s: s, dst: netip.AddrPortFrom(netip.Addr{}, port), sniffing: true}
	if err != nil || killed || !l.do(func() { l.open(f, o) }) {
		f.release(true)
		s.close()
	}
}

// newFlow is the flow of a session, without its descriptors.
func (g *Gateway) newFlow(s *session) *flow {
	return &flow{
		client: end{fd: -1}, upstream: end{fd: -1}, count: g.countOut, countIn: g.countIn,
		ended: func(out, in int64) {
			s.in.Store(in)
			s.out.Store(out)
			s.close()
		},
	}
}

// soOriginalDst is SO_ORIGINAL_DST of linux/netfilter_ipv4.h and IP6T_SO_ORIGINAL_DST of its sibling.
const soOriginalDst = 80

var errNoDestination = errors.New("the kernel does not say where the connection was going")

// originalDestination returns where a redirected connection was going. A connection that the task made to the gateway's
// own port was not redirected; its destination is that port, which no rule allows.
func originalDestination(fd int, v6 bool) (netip.AddrPort, error) {
	// A struct sockaddr_in or sockaddr_in6: family, port, and behind the flow information of the latter the address.
	var b [unix.SizeofSockaddrInet6]byte
	level, size := unix.IPPROTO_IP, unix.SizeofSockaddrInet4
	if v6 {
		level, size = unix.IPPROTO_IPV6, unix.SizeofSockaddrInet6
	}
	if n, err := option(fd, level, soOriginalDst, b[:size]); err != nil || n < size {
		return netip.AddrPort{}, errors.Join(err, errNoDestination)
	}
	addr := netip.AddrFrom4([4]byte(b[4:8]))
	if v6 {
		addr = netip.AddrFrom16([16]byte(b[8:24]))
	}
	return netip.AddrPortFrom(addr, uint16(b[2])<<8|uint16(b[3])), nil
}
