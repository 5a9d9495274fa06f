package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/inspect"
)

// web serves plain HTTP: every request on a connection is judged by its own Host, not only the first one.
type web struct {
	g         *Gateway
	conns     chan net.Conn
	done      chan struct{}
	transport *http.Transport
	// secure carries credentials, and what was inspected; tls is how its requests come in.
	secure  *http.Transport
	tls     *tls.Config
	outward outward
	// internal are the handlers of the gateway's own zone, by label.
	internal map[string]http.Handler
}

const webHeadMaxBytes = 64 << 10

func newWeb(g *Gateway, roots *x509.CertPool) *web {
	w := &web{g: g, conns: make(chan net.Conn), done: make(chan struct{}), internal: map[string]http.Handler{}}
	w.transport = &http.Transport{
		DisableCompression: true, MaxIdleConns: 64, MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second,
		Proxy:       g.proxy.forRequest,
		DialContext: func(ctx context.Context, _, target string) (net.Conn, error) { return w.dial(ctx, target) },
	}
	w.internal["gateway"] = http.HandlerFunc(w.status)
	w.internal["proxy"] = http.HandlerFunc(w.explicitProxy)
	w.secure = w.transport.Clone()
	w.secure.Proxy = nil // what dials for it makes the tunnel
	w.secure.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	w.secure.ForceAttemptHTTP2 = true
	w.addCredentials()
	w.tls = g.serverTLS()
	return w
}

// dial connects to "name:port" or to an address that a rule allows.
func (w *web) dial(ctx context.Context, target string) (net.Conn, error) {
	connect := w.connectTo
	if target == outProxyTarget {
		connect = func(ctx context.Context, _ string) (net.Conn, error) { return w.g.dialProxy(ctx) }
	}
	c, err := connect(ctx, target)
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok { // what is below TLS is kept account of already
		c = w.outward.add(tcp)
	}
	return c, nil
}

func (w *web) connectTo(ctx context.Context, target string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(target)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	if a, err := netip.ParseAddr(host); err == nil {
		dst := netip.AddrPortFrom(a, uint16(port))
		if d := w.g.policy.Load().ConnectAddress(dst, egress.HTTP); !d.Allowed {
			return nil, &refusedError{d}
		}
		return w.g.dialRule(ctx, dst)
	}
	return w.g.dialName(ctx, host, uint16(port))
}

// closeIdle gives up the connections that are kept for further requests.
func (w *web) closeIdle() {
	w.transport.CloseIdleConnections()
	w.secure.CloseIdleConnections()
}

// serve runs the HTTP server on the connections that take hands over.
func (w *web) serve(ctx context.Context) {
	s := &http.Server{
		Handler: w, ReadHeaderTimeout: w.g.config.Timeouts.Head, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: webHeadMaxBytes,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if secure, ok := c.(*tls.Conn); ok {
				c = secure.NetConn()
			}
			return context.WithValue(ctx, sessionKey{}, c.(*webConn).session) //nolint:forcetypeassert // take and inspect hand over nothing else
		},
		ErrorLog:  stdlog.New(io.Discard, "", 0), // the task's mistakes are no news of the host's
		TLSConfig: w.tls,
	}
	go func() {
		<-ctx.Done()
		close(w.done)
		s.Close()
	}()
	s.Serve(w) //nolint:errcheck // ends with Close
}

type sessionKey struct{}

// sessionOf is the session of the connection that a request arrived by.
func sessionOf(r *http.Request) *session {
	return r.Context().Value(sessionKey{}).(*session) //nolint:forcetypeassert // serve gives every connection one
}

// take hands a session over, with what was read of it.
func (w *web) take(s *session, head []byte) {
	s.speaks(egress.HTTP)
	select {
	case w.conns <- &webConn{session: s, rest: head}:
	case <-w.done:
		s.close()
	}
}

// Accept implements net.Listener.
func (w *web) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (w *web) Close() error { return nil }

// Addr implements net.Listener.
func (w *web) Addr() net.Addr { return &net.TCPAddr{} }

// webConn is a session as the HTTP server sees it: bytes are counted, and what was read before comes first.
type webConn struct {
	*session
	rest []byte
}

func (c *webConn) Read(b []byte) (int, error) {
	if len(c.rest) > 0 {
		n := copy(b, c.rest)
		c.rest = c.rest[n:]
		return n, c.sent(n)
	}
	n, err := c.conn.Read(b)
	if lerr := c.sent(n); lerr != nil {
		return 0, lerr
	}
	return n, err
}

func (c *webConn) sent(n int) error {
	c.out.Add(int64(n))
	if !c.g.withinBytes(int64(n)) {
		return errOverLimit
	}
	return nil
}

func (c *webConn) Write(b []byte) (int, error) {
	n, err := c.conn.Write(b)
	c.in.Add(int64(n))
	if c.g.internalHost(c.name) == nil && !c.g.withinIngress(int64(n)) {
		return 0, errOverLimit
	}
	return n, err
}

func (c *webConn) Close() error                       { c.close(); return nil }
func (c *webConn) LocalAddr() net.Addr                { return c.conn.LocalAddr() }
func (c *webConn) RemoteAddr() net.Addr               { return c.conn.RemoteAddr() }
func (c *webConn) SetDeadline(t time.Time) error      { return c.conn.SetDeadline(t) }
func (c *webConn) SetReadDeadline(t time.Time) error  { return c.conn.SetReadDeadline(t) }
func (c *webConn) SetWriteDeadline(t time.Time) error { return c.conn.SetWriteDeadline(t) }

// ServeHTTP judges one request and passes it on.
func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	s := sessionOf(r)
	if h := w.g.internalHost(s.name); h != nil {
		h.ServeHTTP(rw, r)
		return
	}
	if d := w.checkHost(s, r.Host); !d.Allowed && r.Method != http.MethodConnect {
		w.refuse(rw, r, s, d)
		return
	}
	w.forward(rw, r, s, s.name)
}

// checkHost compares a request's host with where its connection goes.
func (w *web) checkHost(s *session, unsafeHost string) egress.Decision {
	host, port, err := splitHost(unsafeHost, s.port)
	if err != nil {
		return egress.Decision{Code: egress.BadName, Reason: err.Error()}
	}
	want := s.name
	if want == "" {
		want = s.address
	}
	if host != want || port != s.port {
		return egress.Decision{Code: egress.NameMismatch, Reason: fmt.Sprintf("the connection goes to %s:%d and the request to %s:%d", want, s.port, host, port)}
	}
	return egress.Decision{Allowed: true}
}

// splitHost parses HOST[:PORT] with the strict grammar of names, or an address in its canonical form.
func splitHost(unsafeHost string, defaultPort uint16) (string, uint16, error) {
	host, port := unsafeHost, defaultPort
	if i := strings.LastIndexByte(unsafeHost, ':'); i >= 0 && !strings.HasSuffix(unsafeHost, "]") {
		n, err := strconv.ParseUint(unsafeHost[i+1:], 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("host %q: not a port", clip(unsafeHost))
		}
		host, port = unsafeHost[:i], uint16(n)
	}
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return a.Unmap().String(), port, nil
	}
	host, err := egress.ParseHost(host)
	return host, port, err
}

// forward judges method and path and passes the request on to host, at the session's port.
func (w *web) forward(rw http.ResponseWriter, r *http.Request, s *session, host string) {
	way := w.wayOf(s, host)
	if d := w.checkPlaceholders(r, way.credentials); !d.Allowed {
		w.refuse(rw, r, s, d)
		return
	}
	p := w.g.policy.Load()
	d := inspect.Check(r, func(method, path string) egress.Decision {
		if host == "" {
			return p.ConnectAddress(addrPort(s), egress.HTTP)
		}
		return p.Request(host, s.port, way.proto, method, path)
	})
	if host == "" {
		host = s.address
	}
	if d.Allowed {
		counted := session{name: host, address: s.address}
		if over := w.g.withinRequests(&counted); !over.Allowed {
			d = over
		}
	}
	if d.Allowed && w.g.proxy.serves(host) {
		if err := w.g.judgeAhead(r.Context(), host, s.port); err != nil {
			d = unreachable(err)
		}
	}
	if !d.Allowed {
		w.refuse(rw, r, s, d)
		return
	}
	e := s.request(r).decided(d)
	e.Name = host
	if used := w.insert(r, way.credentials); used != "" {
		e.Event, e.Rule = "credential", used
	}
	w.g.log.add(e)
	inspect.Outward(r.Header)
	proxy := w.proxy(s, way.transport, func(pr *httputil.ProxyRequest) {
		pr.Out.Host = pr.In.Host
		// Written anew of what was judged; the query is passed on as it is.
		pr.Out.URL = &url.URL{
			Scheme: way.scheme, Host: net.JoinHostPort(host, strconv.Itoa(int(s.port))), Path: pr.In.URL.Path, RawPath: pr.In.URL.RawPath,
			RawQuery: pr.In.URL.RawQuery, ForceQuery: pr.In.URL.ForceQuery,
		}
	})
	proxy.ModifyResponse = func(r *http.Response) error {
		for _, c := range way.credentials {
			conceal(r.Header, c)
		}
		return nil
	}
	proxy.ServeHTTP(rw, r)
}

func (w *web) proxy(s *session, transport http.RoundTripper, rewrite func(*httputil.ProxyRequest)) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: transport, FlushInterval: -1, ErrorLog: stdlog.New(io.Discard, "", 0),
		ErrorHandler: func(rw http.ResponseWriter, r *http.Request, err error) { w.refuse(rw, r, s, unreachable(err)) },
	}
}

// status tells the task what was refused to it.
func (w *web) status(rw http.ResponseWriter, r *http.Request) {
	refused, counts := w.g.log.snapshot()
	rw.Header().Set("Content-Type", "application/json")
	json.NewEncoder(rw).Encode(map[string]any{"refused": refused, "counts": counts}) //nolint:errcheck // the client may be gone
	_ = r
}

// explicitProxy serves clients that are configured to use a proxy: the absolute form, and CONNECT.
func (w *web) explicitProxy(rw http.ResponseWriter, r *http.Request) {
	s := sessionOf(r)
	if r.Method == http.MethodConnect {
		w.connect(rw, r, s)
		return
	}
	host, port, err := splitHost(r.URL.Host, 80)
	if err != nil || r.URL.Scheme != "http" {
		w.refuse(rw, r, s, egress.Decision{Code: egress.BadName, Reason: "a proxy wants the absolute form of a plain HTTP request, or CONNECT"})
		return
	}
	inner := s.within(host, port)
	inner.proto = egress.HTTP
	if _, err := netip.ParseAddr(host); err == nil {
		inner.name, inner.address = "", host
	}
	d := w.checkHost(inner, r.Host)
	if d.Allowed && inner.name != "" {
		d = w.g.resolvable(host)
	}
	if !d.Allowed {
		w.refuse(rw, r, inner, d)
		return
	}
	w.forward(rw, r, inner, inner.name)
}

// within is what a session's client asks for in it, of another destination than that of its connection.
func (s *session) within(host string, port uint16) *session {
	s.g.identify(s)
	return &session{g: s.g, name: host, port: port, who: s.who}
}

// connect opens a tunnel, whose content is then judged as that of a connection to the target.
func (w *web) connect(rw http.ResponseWriter, r *http.Request, s *session) {
	host, port, err := splitHost(r.Host, 443)
	if err == nil {
		_, err = egress.ParseHost(host)
	}
	if err != nil {
		w.refuse(rw, r, s, egress.Decision{Code: egress.BadName, Reason: err.Error()})
		return
	}
	inner := s.within(host, port)
	d := w.g.resolvable(host)
	if d.Allowed {
		d = w.g.policy.Load().Connect(host, port, "")
	}
	if strings.HasSuffix(host, internalZone) {
		d = egress.Decision{Code: egress.NoRule, Reason: "a tunnel to the gateway itself"}
	}
	if !d.Allowed {
		w.refuse(rw, r, inner, d)
		return
	}
	c, buffered, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		w.refuse(rw, r, inner, unreachable(err))
		return
	}
	go w.tunnel(c.(*webConn), buffered, host, port) //nolint:forcetypeassert // likewise
}

func (w *web) tunnel(c *webConn, buffered *bufio.ReadWriter, host string, port uint16) {
	// A client that doesn't wait for the answer has sent what we would have to put back.
	if buffered.Reader.Buffered() > 0 || len(c.rest) > 0 {
		c.Close()
		return
	}
	if _, err := c.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		c.Close()
		return
	}
	s := c.session
	w.g.rename(s, host, port)
	w.g.adopt(s, port)
}

// rename makes a session one with another destination.
func (g *Gateway) rename(s *session, name string, port uint16) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.perName[s.name]--; g.perName[s.name] <= 0 {
		delete(g.perName, s.name)
	}
	s.name, s.port, s.address, s.proto = name, port, "", ""
	g.perName[name]++
}
