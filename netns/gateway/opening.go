package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// opening is what a flow waits for before bytes pass: the client's first message where that is checked, and the connection
// outwards. The loop has both come at once, since where it goes is decided already.
type opening struct {
	s        *session
	dst      netip.AddrPort
	began    time.Time
	head     head
	sniffing bool // head is not complete
	// remote is what the connection outwards goes to: connecting until it is connected or has failed.
	remote                netip.AddrPort
	connecting, connected bool
	failed                error
	// cancel gives up a connection that is made beside the loop; nil without one.
	cancel context.CancelFunc
}

// open starts with a flow whose client is connected.
func (l *loop) open(f *flow, o *opening) {
	f.opening, o.began = o, l.now
	l.register(f)
	if err := l.watch(f, &f.client, clientSide); err != nil {
		l.finish(f, true)
		return
	}
	if !o.sniffing || l.g.mayDialAhead(o.s, o.dst) {
		l.dial(f)
	}
	f.client.readable = o.sniffing // most clients have spoken by now
	l.progress(f)
}

// mayDialAhead spares a connection where plain HTTP is what is allowed or expected, and where TLS is inspected: both are
// served in another way.
func (g *Gateway) mayDialAhead(s *session, dst netip.AddrPort) bool {
	const plainHTTP = 80
	return dst.Port() != plainHTTP && g.judge(s, dst, egress.TLS).Allowed && !g.inspects(s)
}

// dial connects outwards: here if the one address is known, else beside the loop.
func (l *loop) dial(f *flow) {
	o := f.opening
	o.began = l.now
	remote, known := l.g.knownAddress(o.s, o.dst)
	if !known {
		var ctx context.Context
		ctx, o.cancel = context.WithCancel(l.ctx)
		o.connecting = true
		go func() {
			c, err := l.g.dialSession(ctx, o.s, o.dst)
			if !l.do(func() { l.dialled(f, o, c, err) }) {
				giveUp(c)
			}
		}()
		return
	}
	o.remote = remote
	f.upstream.fd, o.connected, o.failed = connectFD(remote)
	o.connecting = !o.connected && o.failed == nil
	if o.failed == nil {
		f.upstream.writable = o.connected
		o.failed = l.watch(f, &f.upstream, upstreamSide)
	}
}

// dialled takes what was connected beside the loop.
func (l *loop) dialled(f *flow, o *opening, c link, err error) {
	o.cancel()
	if f.closed {
		giveUp(c)
		return
	}
	if o.connecting = false; err == nil {
		o.remote = addrPortOf(c.RemoteAddr())
		if f.upstream.fd, err = takeFD(c); err == nil {
			err = l.watch(f, &f.upstream, upstreamSide)
		}
	}
	o.failed, o.connected, f.upstream.writable = err, err == nil, true
	l.progress(f)
}

// connectFD begins to connect. On networks as near as this host's own it is connected when that returns.
func connectFD(to netip.AddrPort) (fd int, connected bool, err error) {
	family := unix.AF_INET6
	if to.Addr().Is4() {
		family = unix.AF_INET
	}
	if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return -1, false, os.NewSyscallError("socket", err)
	}
	if err = connectTo(fd, to); errors.Is(err, unix.EINPROGRESS) {
		// The answer of a near server is there when the kernel lets go of the socket. Asking again tells so without a
		// further round of the loop.
		err = connectTo(fd, to)
	}
	if connected = err == nil; connected || errors.Is(err, unix.EALREADY) {
		err = setOption(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err != nil {
		closeFD(fd)
		return -1, false, fmt.Errorf("connect to %s: %w", to, err)
	}
	return fd, connected, nil
}

// keepAliveSeconds is how long a silent server is believed to be there.
const keepAliveSeconds = 60

// keepAlive has a connection outwards looked after by the kernel. Most connections end before it is worth asking for that;
// those of the task end with its processes and need nothing of the kind.
func (f *flow) keepAlive() {
	if f.kept {
		return
	}
	f.kept = true
	// A pair of sockets of this process, with TLS behind it, has no such options and needs none.
	setOption(f.upstream.fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)                 //nolint:errcheck // see above
	setOption(f.upstream.fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAliveSeconds) //nolint:errcheck // likewise
}

// pendingError takes the error that a socket has met, nil for none.
func pendingError(fd int) error {
	var code [4]byte
	if _, err := option(fd, unix.SOL_SOCKET, unix.SO_ERROR, code[:]); err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	if e := unix.Errno(binary.NativeEndian.Uint32(code[:])); e != 0 {
		return e
	}
	return nil
}

// progress looks what has come of what an opening waits for.
func (l *loop) progress(f *flow) {
	o := f.opening
	if o.sniffing {
		if l.sniff(f); f.closed {
			return
		}
	}
	if o.connecting && o.cancel == nil && (f.upstream.writable || f.upstream.readable) {
		o.connecting = false
		if err := pendingError(f.upstream.fd); err != nil {
			o.failed = fmt.Errorf("connect to %s: %w", o.remote, err)
		} else {
			o.connected = true
		}
	}
	switch {
	case o.sniffing: // a failure is told once it is known in which protocol
	case o.failed != nil:
		l.refuse(f, unreachable(o.failed))
	case o.connected:
		l.establish(f)
	}
}

// sniff reads the client's first message.
func (l *loop) sniff(f *flow) {
	o := f.opening
	for f.client.readable {
		n, err := readFD(f.client.fd, l.means.buf[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			f.client.readable = false
			return
		case errors.Is(err, unix.EINTR):
			continue
		case n <= 0:
			if err == nil {
				err = io.EOF
			}
			l.refuse(f, saidNothing(err))
			return
		}
		if proto := o.head.add(l.means.buf[:n]); proto != "" {
			o.sniffing = false
			l.decideHead(f, proto)
			return
		}
	}
}

func saidNothing(err error) egress.Decision {
	return egress.Decision{Code: egress.WrongProtocol, Reason: "the client said nothing that can be checked: " + err.Error()}
}

// decideHead judges what the client speaks, and the name in it.
func (l *loop) decideHead(f *flow, proto egress.Protocol) {
	o := f.opening
	s, b := o.s, o.head.bytes
	s.speaks(proto)
	d := l.g.judge(s, o.dst, proto)
	if d.Allowed && proto == egress.TLS {
		if named := l.g.checkHello(s, b); !named.Allowed {
			d = named
		}
	}
	if d.Allowed && proto == egress.SSH { // in a tunnel: elsewhere the server speaks first
		l.g.guardSSH(f, s, o.dst, l.now)
	}
	switch {
	case !d.Allowed:
		l.refuse(f, d)
	case proto == egress.HTTP:
		if l.handOver(f, s) {
			go l.g.web.take(s, b)
		}
	case proto == egress.TLS && l.g.inspects(s):
		if l.handOver(f, s) {
			go l.g.inspect(s, b)
		}
	case !o.connected && !o.connecting && o.failed == nil:
		l.dial(f)
	}
}

// establish begins to relay.
func (l *loop) establish(f *flow) {
	o := f.opening
	s, g := o.s, l.g
	d := g.judge(s, o.dst, s.proto) // by the policy as it is now
	switch {
	case !d.Allowed:
		l.refuse(f, d)
		return
	case s.proto == egress.TLS && g.inspects(s):
		if b := o.head.bytes; l.handOver(f, s) {
			go g.inspect(s, b)
		}
		return
	}
	g.mu.Lock()
	killed := s.killed
	g.mu.Unlock()
	f.opening, f.active = nil, l.now
	f.out.held, f.out.moved = o.head.bytes, int64(len(o.head.bytes))
	if killed || !g.withinBytes(f.out.moved) {
		l.finish(f, true)
		return
	}
	err := f.out.decide()
	if err == nil {
		// What waits for the server leaves before the line is written, which takes as long as a server takes to answer.
		_, err = f.advance(&f.out, &f.in, &f.client, &f.upstream, f.count, &l.means, l.now)
	}
	g.identify(s)
	e := s.event("connect").decided(d)
	e.Address = o.remote.String()
	g.log.add(e)
	if err != nil {
		l.finish(f, true)
		return
	}
	l.serve(f)
}

// refuse ends an opening with the reason, of which the client is told.
func (l *loop) refuse(f *flow, d egress.Decision) {
	s, b := f.opening.s, f.opening.head.bytes
	if l.handOver(f, s) {
		go l.g.refuseOpen(s, b, d)
	}
}

// expire ends what has been waited for too long.
func (l *loop) expire(f *flow) {
	o, limits := f.opening, &l.g.config.Timeouts
	switch waited := l.now.Sub(o.began); {
	case o.sniffing && waited > limits.Head:
		l.refuse(f, saidNothing(errIncomplete(limits.Head)))
	case o.connecting && o.cancel == nil && waited > limits.Connect:
		o.connecting, o.failed = false, fmt.Errorf("connect to %s: %w", o.remote, os.ErrDeadlineExceeded)
		l.progress(f)
	}
}

// handOver takes a session out of the loop: its connection becomes one of the Go runtime's, and what it had outwards is
// given up. false says that the session has ended meanwhile.
func (l *loop) handOver(f *flow, s *session) bool {
	fd := f.client.fd
	unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil) //nolint:errcheck // it may never have been in
	f.client.fd = -1
	l.forget(f)
	f.release(false)
	c, err := connOf(fd)
	s.g.mu.Lock()
	s.flow, s.loop, s.conn = nil, nil, c
	killed := s.killed
	s.g.mu.Unlock()
	if err == nil && !killed {
		return true
	}
	if c != nil {
		abort(c)
	}
	s.close()
	return false
}

// connOf makes a descriptor one of the Go runtime's, and closes it in any case.
func connOf(fd int) (*net.TCPConn, error) {
	f := os.NewFile(uintptr(fd), "tcp")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("a %T in place of a TCP connection", c)
	}
	return tcp, nil
}
