package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// nextAttempt is how long one address is waited for before the next is tried beside it. Source: RFC 8305, 5.
const nextAttempt = 250 * time.Millisecond

// refusedError is a decision that came out of resolving or dialling.
type refusedError struct{ egress.Decision }

func (e *refusedError) Error() string { return e.Reason }

// resolve returns the addresses of a name that may be connected to. The error is a refusedError if there are addresses,
// and none of them may.
func (g *Gateway) resolve(ctx context.Context, name string, port uint16) ([]netip.Addr, error) {
	addrs, err := g.resolver.lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	good, refused := g.allowed(name, addrs, port)
	if len(good) == 0 && refused != nil {
		return nil, refused
	}
	return interleave(good), nil
}

// allowed keeps those addresses of a name that may be connected to, and says why the first other one may not.
func (g *Gateway) allowed(name string, addrs []netip.Addr, port uint16) (good []netip.Addr, refused *refusedError) {
	good = make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		if d := g.addressAllowed(a, port); d.Allowed {
			good = append(good, a)
		} else if refused == nil {
			d.Reason = name + " resolves to an address that is refused: " + d.Reason
			refused = &refusedError{d}
		}
	}
	return good, refused
}

// knownAddress returns the one address that a session's connection goes to, judged, if it can be told without asking or
// trying anything.
func (g *Gateway) knownAddress(s *session, dst netip.AddrPort) (netip.AddrPort, bool) {
	if g.proxy.serves(firstOf(s.name, s.address)) {
		return netip.AddrPort{}, false
	}
	if s.name == "" {
		return netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port()), !g.isHost(dst.Addr())
	}
	addrs, ok := g.resolver.known(s.name)
	if !ok {
		return netip.AddrPort{}, false
	}
	good, _ := g.allowed(s.name, addrs, dst.Port())
	if len(good) != 1 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(good[0].Unmap(), dst.Port()), true
}

// addressAllowed is asked for the address of every connection, right before it is dialled.
func (g *Gateway) addressAllowed(a netip.Addr, port uint16) egress.Decision {
	a = a.Unmap().WithZone("")
	d := g.policy.Load().Address(a, port)
	if d.Allowed && g.isHost(a) {
		return hostAddress(a)
	}
	return d
}

// isHost reports whether an address is the host's own, and the administrator did not name it.
func (g *Gateway) isHost(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.Contains(g.config.Refused, a) && !slices.Contains(g.config.Policy.Addresses, netip.PrefixFrom(a, a.BitLen()))
}

func hostAddress(a netip.Addr) egress.Decision {
	return egress.Decision{
		Code:   egress.BadAddress,
		Reason: fmt.Sprintf("%s is an address of the host itself; naming it in network.addresses would allow it", a),
	}
}

// interleave puts families in turns, IPv6 first. Source: RFC 8305, 4.
func interleave(in []netip.Addr) []netip.Addr {
	var v4, v6, out []netip.Addr
	for _, a := range in {
		if a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	for i := range max(len(v4), len(v6)) {
		if i < len(v6) {
			out = append(out, v6[i])
		}
		if i < len(v4) {
			out = append(out, v4[i])
		}
	}
	return out
}

// dialName resolves a name and connects to the first of its addresses that answers: a *net.TCPConn, or where a proxy is
// spoken to by TLS a *tls.Conn.
func (g *Gateway) dialName(ctx context.Context, name string, port uint16) (net.Conn, error) {
	if g.proxy.serves(name) {
		if err := g.judgeAhead(ctx, name, port); err != nil {
			return nil, err
		}
		return g.tunnel(ctx, name, port)
	}
	addrs, err := g.resolve(ctx, name, port)
	if err != nil {
		return nil, err
	}
	return g.dialAny(ctx, addrs, port)
}

// dialRule connects to an address that a rule allows as such, with the same results.
func (g *Gateway) dialRule(ctx context.Context, dst netip.AddrPort) (net.Conn, error) {
	if g.isHost(dst.Addr()) {
		return nil, &refusedError{hostAddress(dst.Addr())}
	}
	if g.proxy.serves(dst.Addr().String()) {
		return g.tunnel(ctx, dst.Addr().String(), dst.Port())
	}
	ctx, cancel := context.WithTimeout(ctx, g.config.Timeouts.Connect)
	defer cancel()
	return g.connect(ctx, dst)
}

// dialAny tries the addresses in order, each a moment after the one before or as soon as that has failed.
func (g *Gateway) dialAny(ctx context.Context, addrs []netip.Addr, port uint16) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, g.config.Timeouts.Connect)
	defer cancel()
	if len(addrs) == 1 { // nothing to race: spare two changes of goroutine
		return g.dialAddress(ctx, netip.AddrPortFrom(addrs[0], port))
	}
	type result struct {
		conn *net.TCPConn
		err  error
	}
	results := make(chan result, len(addrs))
	err := errors.New("no address")
	next, pending := 0, 0
	start := func() {
		a := netip.AddrPortFrom(addrs[next], port)
		next, pending = next+1, pending+1
		go func() {
			c, err := g.dialAddress(ctx, a)
			results <- result{c, err}
		}()
	}
	timer := time.NewTimer(nextAttempt)
	defer timer.Stop()
	for next < len(addrs) || pending > 0 {
		if pending == 0 {
			start()
			timer.Reset(nextAttempt)
		}
		select {
		case <-timer.C:
			if next < len(addrs) {
				start()
				timer.Reset(nextAttempt)
			}
		case r := <-results:
			pending--
			if r.err == nil {
				go func() { // whoever else connects meanwhile
					for range pending {
						if late := <-results; late.conn != nil {
							late.conn.Close()
						}
					}
				}()
				return r.conn, nil
			}
			err = r.err
		}
	}
	return nil, err
}

// dialAddress is the only place that connects.
func (g *Gateway) dialAddress(ctx context.Context, a netip.AddrPort) (*net.TCPConn, error) {
	if d := g.addressAllowed(a.Addr(), a.Port()); !d.Allowed {
		return nil, &refusedError{d}
	}
	return g.connect(ctx, a)
}

// connect dials an address that was judged already.
func (g *Gateway) connect(ctx context.Context, a netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{KeepAlive: time.Minute}
	c, err := d.DialContext(ctx, "tcp", a.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil //nolint:forcetypeassert // what "tcp" dials is nothing else
}
