package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// refusalPatience is how long a refused client may take to show what it speaks, so that it can be told why.
const refusalPatience = 300 * time.Millisecond

// handle serves one connection of the task.
func (g *Gateway) handle(ctx context.Context, c *net.TCPConn) {
	dst, err := originalDestination(c)
	if err != nil {
		reset(c)
		return
	}
	s := &session{g: g, conn: c, begin: time.Now(), address: dst.Addr().String(), port: dst.Port()}
	name, named := g.names.lookup(dst.Addr())
	s.name = name
	if d := g.judge(s, dst, ""); !d.Allowed {
		g.refuse(s, nil, d)
		return
	}
	if d := g.open(s); !d.Allowed {
		g.refuse(s, nil, d)
		return
	}
	switch {
	case named && strings.HasSuffix(name, internalZone):
		g.web.take(s, nil)
	case g.judge(s, dst, egress.Raw).Allowed:
		s.speaks(egress.Raw) // nothing inside is checked, so nothing is waited for
		g.join(ctx, s, dst, &flow{})
	case g.judge(s, dst, egress.SSH).Allowed:
		s.speaks(egress.SSH)
		g.serveSSH(ctx, s, dst)
	default:
		g.serveSniffed(ctx, s, dst)
	}
}

// judge decides by destination and protocol; "" asks for any.
func (g *Gateway) judge(s *session, dst netip.AddrPort, proto egress.Protocol) egress.Decision {
	p := g.policy.Load()
	switch {
	case s.name == "" && g.names.synthetic(dst.Addr()):
		return egress.Decision{Code: egress.NoName, Reason: fmt.Sprintf("%s stands for no name that was asked for", dst.Addr())}
	case s.name == "":
		return p.ConnectAddress(dst, proto)
	case strings.HasSuffix(s.name, internalZone):
		if g.internalHost(s.name) != nil {
			return egress.Decision{Allowed: true}
		}
	}
	return p.Connect(s.name, dst.Port(), proto)
}

// serveSniffed reads the client's first message, checks the name in it against the destination, and joins. The
// connection outwards is made meanwhile: where it goes is decided already.
func (g *Gateway) serveSniffed(ctx context.Context, s *session, dst netip.AddrPort) {
	first := g.dialAhead(ctx, s, dst)
	head, proto, err := readHead(s.conn, g.config.Timeouts.Head)
	if err != nil {
		first.abandon()
		g.refuseOpen(s, nil, egress.Decision{Code: egress.WrongProtocol, Reason: "the client said nothing that can be checked: " + err.Error()})
		return
	}
	s.speaks(proto)
	d := g.judge(s, dst, proto)
	if d.Allowed && proto == egress.TLS {
		if named := g.checkHello(s, head); !named.Allowed {
			d = named
		}
	}
	switch {
	case !d.Allowed:
		first.abandon()
		g.refuseOpen(s, head, d)
	case proto == egress.HTTP:
		first.abandon()
		g.web.take(s, head)
	case proto == egress.TLS && g.inspects(s):
		first.abandon()
		g.inspect(s, head)
	default:
		g.finish(s, first, head, d)
	}
}

// checkHello compares the name inside a TLS hello with where the connection goes.
func (g *Gateway) checkHello(s *session, head []byte) egress.Decision {
	h, err := parseHello(head)
	if err != nil {
		return egress.Decision{Code: egress.WrongProtocol, Reason: "the TLS hello can't be read: " + err.Error()}
	}
	// An encrypted inner hello can't be told from the greased one that browsers always send (RFC 9849, 6.2), so it is not
	// refused as such: the outer name must be that of the destination, and what a server does with an inner name it could
	// as well do with the Host inside the connection.
	if h.serverName == "" {
		if s.name == "" {
			return egress.Decision{Allowed: true}
		}
		hidden := "names no server"
		if h.encrypted {
			hidden = "hides the name of the server (ECH)"
		}
		return egress.Decision{Code: egress.HiddenName, Reason: "the TLS hello " + hidden + "; a rule \"tcp://" + s.name + fmt.Sprintf(":%d\" would allow that", s.port)}
	}
	name, err := egress.ParseHost(h.serverName)
	switch {
	case err != nil:
		return egress.Decision{Code: egress.BadName, Reason: err.Error()}
	case s.name == "":
		// The rule is for the address; a name that a rule denies stays denied.
		if d := g.policy.Load().Connect(name, s.port, egress.TLS); d.Code == egress.DeniedByRule {
			return d
		}
	case name != s.name:
		return egress.Decision{Code: egress.NameMismatch, Reason: fmt.Sprintf("the connection goes to %s and the TLS hello asks for %s", s.name, name)}
	}
	return egress.Decision{Allowed: true}
}

// serveSSH lets the server speak first and holds the client to its banner.
func (g *Gateway) serveSSH(ctx context.Context, s *session, dst netip.AddrPort) {
	f := &flow{out: way{filter: clientSpeaksSSH}, headBy: time.Now().Add(g.config.Timeouts.Head)}
	if keys := g.judge(s, dst, egress.SSH).HostKeys; keys != nil {
		f.in.filter = g.pinned(s, keys)
	}
	g.join(ctx, s, dst, f)
}

// pinned is hostKeyFilter, which logs what it refuses: the client sees a reset alone.
func (g *Gateway) pinned(s *session, keys []string) filter {
	check := hostKeyFilter(keys)
	return func(held []byte) (int, bool, error) {
		pass, done, err := check(held)
		if err != nil {
			g.log.add(s.event("connect").decided(egress.Decision{Code: egress.WrongHostKey, Reason: err.Error()}))
		}
		return pass, done, err
	}
}

// clientSpeaksSSH is a filter: the rule lets SSH pass and nothing else.
func clientSpeaksSSH(held []byte) (int, bool, error) {
	switch sniff(held) {
	case "":
		return 0, false, nil
	case egress.SSH:
		return 0, true, nil
	default:
		return 0, false, errNoSSH
	}
}

var errNoSSH = errors.New("the rule lets SSH pass, and the client speaks something else")

// join dials and relays as f says.
func (g *Gateway) join(ctx context.Context, s *session, dst netip.AddrPort, f *flow) {
	d := g.judge(s, dst, s.proto)
	upstream, err := g.dialSession(ctx, s, dst)
	if err != nil {
		g.refuseOpen(s, nil, unreachable(err))
		return
	}
	g.log.add(s.dialled(upstream).decided(d))
	g.relay(s, upstream, f)
}

// finish sends what was read already and relays the rest.
func (g *Gateway) finish(s *session, first *dialling, head []byte, d egress.Decision) {
	upstream, err := first.wait()
	if err != nil {
		g.refuseOpen(s, head, unreachable(err))
		return
	}
	g.log.add(s.dialled(upstream).decided(d))
	g.relay(s, upstream, &flow{out: way{held: head, moved: int64(len(head))}})
}

// relay gives a session to a loop, which ends it.
func (g *Gateway) relay(s *session, upstream *net.TCPConn, f *flow) {
	f.count, f.countIn = g.withinBytes, g.withinIngress
	f.ended = func(out, in int64) {
		s.in.Store(in)
		s.out.Store(out)
		s.close()
	}
	client, from := s.conn, localAddress(upstream)
	g.mu.Lock()
	killed := s.killed
	if !killed {
		s.from = from
		s.flow, s.loop, s.conn = f, g.loops[int(g.turn.Add(1))%len(g.loops)], nil
	}
	g.mu.Unlock()
	if killed || !g.withinBytes(int64(len(f.out.held))) {
		abort(client, upstream)
		s.close()
		return
	}
	if f.out.filter == nil {
		f.out.held = sendNow(upstream, f.out.held)
	}
	if err := s.loop.start(f, client, upstream); err != nil {
		s.close()
	}
}

// sendNow writes what can be written without waiting and returns the rest: the other side has its answer ready by the time
// that a loop has taken the connection over.
func sendNow(c *net.TCPConn, b []byte) []byte {
	if raw, err := c.SyscallConn(); err == nil && len(b) > 0 {
		raw.Control(func(fd uintptr) { //nolint:errcheck // then the loop meets the error
			if n, err := unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err == nil {
				b = b[n:]
			}
		})
	}
	return b
}

// abort resets connections, and wakes whoever reads or writes.
func abort(conns ...*net.TCPConn) {
	for _, c := range conns {
		c.SetLinger(0) //nolint:errcheck // it may be closed already
		c.Close()
	}
}

// dialled is the event of a connection that was made.
func (s *session) dialled(upstream net.Conn) Event {
	e := s.event("connect")
	e.Address = upstream.RemoteAddr().String()
	return e
}

func unreachable(err error) egress.Decision {
	if refused, ok := errors.AsType[*refusedError](err); ok {
		return refused.Decision
	}
	return egress.Decision{Code: egress.Unreachable, Reason: err.Error()}
}

// dialling is a connection outwards in progress.
type dialling struct {
	cancel context.CancelFunc
	done   chan struct{}
	conn   *net.TCPConn
	err    error
}

func (g *Gateway) dialAhead(ctx context.Context, s *session, dst netip.AddrPort) *dialling {
	ctx, cancel := context.WithCancel(ctx)
	d := &dialling{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.conn, d.err = g.dialSession(ctx, s, dst)
	}()
	return d
}

// dialSession connects to where a session goes.
func (g *Gateway) dialSession(ctx context.Context, s *session, dst netip.AddrPort) (*net.TCPConn, error) {
	if s.name != "" {
		return g.dialName(ctx, s.name, dst.Port())
	}
	return g.dialRule(ctx, dst)
}

func (d *dialling) wait() (*net.TCPConn, error) {
	<-d.done
	d.cancel()
	return d.conn, d.err
}

// abandon gives the connection up, whenever it comes.
func (d *dialling) abandon() {
	d.cancel()
	go func() {
		if c, _ := d.wait(); c != nil {
			c.Close()
		}
	}()
}

// readHead reads until the protocol is known, and for TLS until the hello is complete. One deadline bounds it all, so
// bytes that trickle in hold nothing open.
func readHead(c *net.TCPConn, limit time.Duration) ([]byte, egress.Protocol, error) {
	c.SetReadDeadline(time.Now().Add(limit)) //nolint:errcheck // Read says what is wrong
	defer c.SetReadDeadline(time.Time{})     //nolint:errcheck // likewise
	buf := make([]byte, 0, 4096)
	whole := 0 // bytes in complete records
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := c.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		proto := sniff(buf)
		if proto == egress.TLS && len(buf) <= 2*maxHelloBytes {
			// Only a further record can complete the hello: a client that sends byte by byte must not have all of it parsed
			// as often.
			more := wholeRecords(buf, whole)
			if more == whole {
				proto = ""
			} else if _, herr := parseHello(buf); errors.Is(herr, errShort) {
				proto = ""
			}
			whole = more
		}
		if proto != "" {
			return buf, proto, nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return buf, "", fmt.Errorf("nothing complete within %s", limit)
		}
		if err != nil {
			return buf, "", err
		}
	}
}

// refuse tells the client why, in its own protocol if that is known within a moment, and logs it.
func (g *Gateway) refuse(s *session, head []byte, d egress.Decision) {
	if head == nil {
		var proto egress.Protocol
		head, proto, _ = readHead(s.conn, refusalPatience)
		s.speaks(proto)
	}
	g.log.add(s.event("connect").decided(d))
	answerRefusal(s.conn, head, s, d)
}

// refuseOpen is refuse for a session that was opened.
func (g *Gateway) refuseOpen(s *session, head []byte, d egress.Decision) {
	g.refuse(s, head, d)
	s.closed.Store(true)
	g.mu.Lock()
	delete(g.sessions, s)
	if g.perName[s.name]--; g.perName[s.name] <= 0 {
		delete(g.perName, s.name)
	}
	g.mu.Unlock()
}

// answerRefusal writes a TLS alert, an HTTP answer or a reset, and closes.
func answerRefusal(c *net.TCPConn, head []byte, s *session, d egress.Decision) {
	c.SetWriteDeadline(time.Now().Add(time.Second)) //nolint:errcheck // Write says what is wrong
	switch sniff(head) {
	case egress.TLS:
		const fatal, accessDenied = 2, 49                    // RFC 8446, 6
		c.Write([]byte{21, 3, 3, 0, 2, fatal, accessDenied}) //nolint:errcheck // the client may be gone
	case egress.HTTP:
		c.Write(refusalResponse(s.name, s.address, s.port, d)) //nolint:errcheck // likewise
	default:
		reset(c)
		return
	}
	// What the client still sends would make the kernel reset the connection before the answer is read.
	c.CloseWrite()                                            //nolint:errcheck // likewise
	c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) //nolint:errcheck // likewise
	var sink [4096]byte
	for total := 0; total < 1<<20; {
		n, err := c.Read(sink[:])
		if err != nil {
			break
		}
		total += n
	}
	c.Close()
}

func reset(c *net.TCPConn) {
	c.SetLinger(0) //nolint:errcheck // closing is what counts
	c.Close()
}

// soOriginalDst is SO_ORIGINAL_DST of linux/netfilter_ipv4.h and IP6T_SO_ORIGINAL_DST of its sibling.
const soOriginalDst = 80

// originalDestination returns where a redirected connection was going. A connection that the task made to the gateway's
// own port was not redirected; its destination is that port, which no rule allows.
func originalDestination(c *net.TCPConn) (netip.AddrPort, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	var out netip.AddrPort
	var serr error
	isV4 := c.LocalAddr().(*net.TCPAddr).IP.To4() != nil //nolint:forcetypeassert // a TCPConn has no other
	err = raw.Control(func(fd uintptr) {
		if isV4 {
			// A struct sockaddr_in has the size of the first field of this option's type.
			var m *unix.IPv6Mreq
			if m, serr = unix.GetsockoptIPv6Mreq(int(fd), unix.IPPROTO_IP, soOriginalDst); serr == nil {
				b := m.Multiaddr
				out = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
			}
			return
		}
		var m *unix.IPv6MTUInfo
		if m, serr = unix.GetsockoptIPv6MTUInfo(int(fd), unix.IPPROTO_IPV6, soOriginalDst); serr == nil {
			port := m.Addr.Port // in network order
			out = netip.AddrPortFrom(netip.AddrFrom16(m.Addr.Addr), port>>8|port<<8)
		}
	})
	if err == nil {
		err = serr
	}
	return out, err
}

// addrPort is the destination of a session without a name.
func addrPort(s *session) netip.AddrPort {
	a, _ := netip.ParseAddr(s.address)
	return netip.AddrPortFrom(a, s.port)
}
