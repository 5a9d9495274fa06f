package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// outProxy is the HTTP proxy that connections go out by: plain HTTP in the absolute form, everything else by CONNECT.
// A nil one serves nothing.
type outProxy struct {
	wire.Proxy
	except *egress.Policy
	url    *url.URL
	tls    *tls.Config // nil for a proxy without
}

// outProxyTarget is how the transport of plain HTTP calls the proxy. No name below the gateway's own zone is ever dialled.
const outProxyTarget = "outward" + internalZone + ":80"

// Bounds of what a proxy may take and say.
const (
	proxyHeadBytes = 16 << 10
	// judgeWait is how long a name is looked up that the proxy may know anyway.
	judgeWait = time.Second
)

func newOutProxy(c *wire.Proxy, roots *x509.CertPool) (*outProxy, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // no proxy is one that serves nothing
	}
	if c.Host == "" || c.Port == 0 || strings.ContainsAny(c.Authorization, "\r\n\x00") {
		return nil, errors.New("want a host, a port, and USER:PASSWORD in one line")
	}
	p := &outProxy{Proxy: *c, url: &url.URL{Scheme: "http", Host: outProxyTarget}}
	if user, password, ok := strings.Cut(c.Authorization, ":"); ok {
		p.url.User = url.UserPassword(user, password)
	}
	if c.TLS {
		p.tls = &tls.Config{RootCAs: roots, ServerName: c.Host, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	var rules egress.Config
	for _, e := range c.Except {
		rules.Allow = append(rules.Allow, wire.ExceptRule(e))
	}
	var err error
	p.except, err = egress.Compile(rules)
	return p, err
}

// serves reports whether connections to a name or an address go by the proxy.
func (p *outProxy) serves(host string) bool {
	if p == nil {
		return false
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return !p.except.ConnectAddress(netip.AddrPortFrom(a.Unmap(), 1), egress.Raw).Allowed
	}
	return !p.except.Connect(host, 1, egress.Raw).Allowed
}

// forRequest is for a transport of plain HTTP.
func (p *outProxy) forRequest(r *http.Request) (*url.URL, error) {
	if !p.serves(r.URL.Hostname()) {
		return nil, nil //nolint:nilnil // as http.Transport wants it
	}
	return p.url, nil
}

// judgeAhead refuses a name all of whose addresses are refused, as far as the name is known here: which address the
// proxy takes is its own business, and it may know names that nobody here does.
func (g *Gateway) judgeAhead(ctx context.Context, name string, port uint16) error {
	ctx, cancel := context.WithTimeout(ctx, judgeWait)
	defer cancel()
	var refused *refusedError
	if _, err := g.resolve(ctx, name, port); errors.As(err, &refused) {
		return err
	}
	return nil
}

// dialProxy connects to the proxy itself: a *net.TCPConn, or a *tls.Conn.
func (g *Gateway) dialProxy(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, g.config.Timeouts.Connect)
	defer cancel()
	p := g.proxy
	addrs := []netip.Addr{}
	if a, err := netip.ParseAddr(p.Host); err == nil {
		addrs = append(addrs, a)
	} else if addrs, err = g.resolver.lookup(ctx, p.Host); err != nil {
		return nil, fmt.Errorf("find the proxy of this host: %w", err)
	}
	err := errors.New("it has no address")
	for _, a := range addrs {
		if (netns.ClassOf(a) == netns.ClassLoopback || a.IsUnspecified()) && !p.Loopback {
			err = fmt.Errorf("%s is the container's own loopback here", a)
			continue
		}
		var c *net.TCPConn
		if c, err = g.connect(ctx, netip.AddrPortFrom(a, p.Port)); err != nil {
			continue
		}
		if p.tls == nil {
			return c, nil
		}
		secure := tls.Client(g.web.outward.add(c), p.tls)
		if err = secure.HandshakeContext(ctx); err == nil {
			return secure, nil
		}
		secure.Close()
	}
	return nil, fmt.Errorf("reach the proxy of this host: %w", err)
}

// tunnel asks the proxy for a connection.
func (g *Gateway) tunnel(ctx context.Context, host string, port uint16) (net.Conn, error) {
	c, err := g.dialProxy(ctx)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })() //nolint:errcheck // Read says what is wrong
	c.SetDeadline(time.Now().Add(g.config.Timeouts.Connect))                  //nolint:errcheck // likewise
	if err := g.proxy.ask(c, net.JoinHostPort(host, strconv.Itoa(int(port)))); err != nil {
		c.Close()
		return nil, err
	}
	c.SetDeadline(time.Time{}) //nolint:errcheck // likewise
	return c, nil
}

// ask sends CONNECT and reads the answer, byte by byte: what comes behind it is the destination's.
func (p *outProxy) ask(c net.Conn, target string) error {
	head := "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n"
	if p.Authorization != "" {
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(p.Authorization)) + "\r\n"
	}
	if _, err := c.Write([]byte(head + "\r\n")); err != nil {
		return fmt.Errorf("ask the proxy of this host for %s: %w", target, err)
	}
	answer := make([]byte, 0, 256)
	for !strings.HasSuffix(string(answer[max(0, len(answer)-4):]), "\r\n\r\n") {
		if len(answer) >= proxyHeadBytes {
			return errors.New("the proxy of this host answers at length and not to the point")
		}
		answer = append(answer, 0)
		if _, err := c.Read(answer[len(answer)-1:]); err != nil {
			return fmt.Errorf("ask the proxy of this host for %s: %w", target, err)
		}
	}
	version, status, _ := strings.Cut(string(answer[:strings.IndexByte(string(answer), '\r')]), " ")
	if !strings.HasPrefix(version, "HTTP/1.") || !strings.HasPrefix(status, "200") {
		return fmt.Errorf("the proxy of this host answers %q for %s", clip(strings.ToValidUTF8(status, "?")), target)
	}
	return nil
}
