package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/inspect"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// canInspect refuses a policy that can't be enforced: without an authority no request in TLS is ever seen.
func (g *Gateway) canInspect(p *egress.Policy) error {
	if g.authority != nil || !p.Inspects() {
		return nil
	}
	return errors.New("rules with methods or a path on TLS have it inspected, and this network was set up without that, so its tasks " +
		"would not trust the gateway: `inspectCertificate` and `inspectKey` below `[network]` in /etc/agentsafe/config.toml, " +
		"and a rule for requests in TLS in the profile of the container that was started first")
}

// inspects reports whether the requests in a session's TLS are judged: by a rule, or for a credential.
func (g *Gateway) inspects(s *session) bool {
	return s.name != "" && (g.policy.Load().Connect(s.name, s.port, egress.TLS).Inspect || len(g.carried(s.name, s.port)) > 0)
}

// serverTLS is how the gateway stands in for destinations; nil if it never does.
func (g *Gateway) serverTLS() *tls.Config {
	if g.authority == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			c, ok := h.Conn.(*webConn)
			if !ok || !c.inspected {
				return nil, errors.New("the connection is not inspected")
			}
			// Of the name that was judged: the one in the hello has been compared with it.
			return g.authority.Certificate(c.name)
		},
	}
}

// inspect takes a session over whose hello was judged, and has the requests in it judged. The handshake is bounded in time
// as the hello was.
func (g *Gateway) inspect(s *session, head []byte) {
	s.inspected = true
	g.identify(s)
	c := tls.Server(&webConn{session: s, rest: head}, g.web.tls)
	ctx, cancel := context.WithTimeout(context.Background(), g.config.Timeouts.Head)
	defer cancel()
	d := g.policy.Load().Connect(s.name, s.port, egress.TLS)
	if err := c.HandshakeContext(ctx); err != nil {
		e := s.event("connect").decided(egress.Decision{
			Code: egress.WrongProtocol, Rule: d.Rule,
			Reason: fmt.Sprintf("the client does not accept the gateway's TLS, in which its requests would be judged (it has to trust the authority that SSL_CERT_FILE names): %v", err),
		})
		g.log.add(e)
		c.Close()
		return
	}
	g.log.add(s.event("connect").decided(d))
	select {
	case g.web.conns <- c:
	case <-g.web.done:
		c.Close()
	}
}

// webWay is how a request goes on.
type webWay struct {
	proto     egress.Protocol
	scheme    string
	transport http.RoundTripper
	// credentials are what the destination gets in place of placeholders.
	credentials []*wire.Credential
}

// wayOf: what came in by TLS goes out by TLS, whose certificate is that of the same name by the host's authorities.
func (w *web) wayOf(s *session, host string) webWay {
	if !s.inspected {
		return webWay{proto: egress.HTTP, scheme: "http", transport: w.transport}
	}
	way := webWay{proto: egress.TLS, scheme: "https", transport: w.secure}
	withheld := w.g.shared.Load().withheld
	for _, c := range w.g.carried(host, s.port) {
		if !withheld[c.Name] {
			way.credentials = append(way.credentials, c)
		}
	}
	return way
}

// request is the event of one request.
func (s *session) request(r *http.Request) Event {
	s.g.identify(s)
	e := s.event("request")
	e.Method, e.Path = r.Method, inspect.LogPath(r.URL)
	return e
}
