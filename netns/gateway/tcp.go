package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// refusalPatience is how long a refused client may take to show what it speaks, so that it can be told why.
const refusalPatience = 300 * time.Millisecond

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

// guardSSH lets the server speak first and holds the client to its banner.
func (g *Gateway) guardSSH(f *flow, s *session, dst netip.AddrPort, now time.Time) {
	f.out.filter, f.headBy = clientSpeaksSSH, now.Add(g.config.Timeouts.Head)
	if keys := g.judge(s, dst, egress.SSH).HostKeys; keys != nil {
		f.in.filter = g.pinned(s, keys)
	}
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

// abort resets connections, and wakes whoever reads or writes.
func abort(conns ...*net.TCPConn) {
	for _, c := range conns {
		c.SetLinger(0) //nolint:errcheck // it may be closed already
		c.Close()
	}
}

func unreachable(err error) egress.Decision {
	if refused, ok := errors.AsType[*refusedError](err); ok {
		return refused.Decision
	}
	return egress.Decision{Code: egress.Unreachable, Reason: err.Error()}
}

// dialSession connects to where a session goes.
func (g *Gateway) dialSession(ctx context.Context, s *session, dst netip.AddrPort) (link, error) {
	var c net.Conn
	var err error
	if s.name != "" {
		c, err = g.dialName(ctx, s.name, dst.Port())
	} else {
		c, err = g.dialRule(ctx, dst)
	}
	if err != nil {
		return nil, err
	}
	return g.linkOf(s, c)
}

// refuse tells the client why, in its own protocol if that is known within a moment, and logs it.
func (g *Gateway) refuse(s *session, head []byte, d egress.Decision) {
	if head == nil {
		var proto egress.Protocol
		head, proto, _ = readHead(s.conn, refusalPatience)
		s.speaks(proto)
	}
	g.identify(s)
	g.log.add(s.event("connect").decided(d))
	answerRefusal(s.conn, head, s, d)
}

// refuseOpen is refuse for a session that was opened.
func (g *Gateway) refuseOpen(s *session, head []byte, d egress.Decision) {
	g.refuse(s, head, d)
	s.letGo()
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

// resetFD is reset of a descriptor.
func resetFD(fd int) {
	unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) //nolint:errcheck // closing is what counts
	closeFD(fd)
}

// addrPort is the destination of a session without a name.
func addrPort(s *session) netip.AddrPort {
	a, _ := netip.ParseAddr(s.address)
	return netip.AddrPortFrom(a, s.port)
}
