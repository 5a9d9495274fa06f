package gateway

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/inspect"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// Sockets are what a gateway serves on; all of them are in the container's network namespace, and the gateway owns them.
type Sockets struct {
	TCP     []*os.File       // of listening sockets for redirected connections
	DNS     []net.PacketConn // redirected questions
	DNSTCP  []net.Listener
	Control *net.UnixListener // of the host; nil for none
	// Refused tells of packets that the rules refuse by themselves ([netns.OpenRefusedLog]); nil for none.
	Refused *os.File
	// Diag are two sockets that answer questions about sockets ([netns.OpenSocketDiag]), and Execs has a line for each
	// command of the container ([wire.Origin]); without them the log does not say whose a connection is.
	Diag  []*os.File
	Execs *os.File
}

// Gateway is one running gateway.
type Gateway struct {
	config    wire.Config
	policy    atomic.Pointer[egress.Policy]
	names     *names
	resolver  *resolver
	proxy     *outProxy // nil for none
	wildcards *wildcards
	log       *log
	origins   *origins // nil where it can't be told whose a connection is
	web       *web
	authority *inspect.Authority // nil where TLS is never inspected
	loops     []*loop            // of all connections that are relayed
	turn      atomic.Uint32

	// countOut and countIn are withinBytes and withinIngress, made once.
	countOut, countIn func(n int64) bool

	// shared is what the containers of the pod have in common beside the policy.
	shared atomic.Pointer[shared]

	mu       sync.Mutex
	changes  egress.Config // what was allowed and denied while running
	members  []wire.Member // the pod's other containers
	sessions map[*session]struct{}
	perName  map[string]int
	sent     atomic.Int64 // bytes from the task, in all
	got      atomic.Int64 // bytes to the task, in all
}

// Trust is what the gateway's own TLS goes by. The zero value inspects nothing.
type Trust struct {
	// Roots are the certificate authorities of the host, for the connections to destinations that carry credentials or are
	// inspected, and to a proxy; nil is the system's.
	Roots *x509.CertPool
	// Authority makes the certificates that tasks see where TLS is inspected; nil refuses every policy that asks for that.
	Authority *inspect.Authority
}

// New compiles the policy. logFile is appended to and stays the caller's; nil logs nothing.
func New(c wire.Config, logFile *os.File, trust Trust) (*Gateway, error) {
	c.ApplyDefaults()
	if err := validate(&c); err != nil {
		return nil, fmt.Errorf("gateway configuration: %w", err)
	}
	g := &Gateway{
		config: c, names: newNames(c.IPv4, c.IPv6), resolver: newResolver(c.Nameservers),
		wildcards: newWildcards(c.Limits.NamesPerMinute), log: &log{container: c.Container, out: logFile},
		sessions: map[*session]struct{}{}, perName: map[string]int{}, authority: trust.Authority,
	}
	var err error
	if g.proxy, err = newOutProxy(c.Proxy, trust.Roots); err != nil {
		return nil, fmt.Errorf("gateway configuration: proxy: %w", err)
	}
	if g.authority == nil && slices.ContainsFunc(c.Credentials, func(c wire.Credential) bool { return c.Inspect }) {
		return nil, errors.New("gateway configuration: a credential for inspected TLS, without an authority to inspect it with")
	}
	if err := g.enact(c.Members, egress.Config{}); err != nil {
		return nil, fmt.Errorf("gateway configuration: %w", err)
	}
	g.countOut, g.countIn = g.withinBytes, g.withinIngress
	g.web = newWeb(g, trust.Roots)
	return g, nil
}

// relayThreads is how many loops there are. One is enough for what a container does; the second keeps a transfer that
// fills a link from delaying the others.
const relayThreads = 2

// Run serves until ctx ends or a listener fails, and closes the sockets.
func (g *Gateway) Run(ctx context.Context, s Sockets) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if runtime.GOMAXPROCS(0) <= relayThreads { // see loop.wait
		runtime.GOMAXPROCS(relayThreads + 1)
	}
	for range relayThreads {
		l, err := newLoop(g.config.Timeouts.Idle)
		if err != nil {
			return err
		}
		g.loops = append(g.loops, l)
		defer l.stop()
	}
	listeners, err := takeListeners(s.TCP, len(g.loops))
	if err != nil {
		return err
	}
	network, err := openUplink()
	if err != nil {
		return fmt.Errorf("hear of changes of the network: %w", err)
	}
	go func() { cancel(network.watch(ctx, g.networkChanged)) }()
	d := &dnsServer{g: g, slots: make(chan struct{}, dnsAtOnce)}
	go d.serve(ctx, s.DNS, s.DNSTCP)
	go g.web.serve(ctx)
	for i, l := range g.loops {
		l.listen(ctx, g, listeners[i])
	}
	if s.Control != nil {
		go g.control(s.Control)
	}
	if s.Refused != nil {
		go (&refusedPackets{g: g, seen: map[refusedPacket]time.Time{}}).watch(ctx, s.Refused)
	}
	g.origins = newOrigins(s.Diag, s.Execs)
	defer g.origins.close()
	g.log.add(Event{Event: "start"})
	<-ctx.Done()
	if s.Control != nil {
		s.Control.Close()
	}
	g.closeSessions(func(*session) bool { return true })
	for _, l := range g.loops {
		l.stop()
	}
	g.log.summarise()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// session is one connection of the task.
type session struct {
	g     *Gateway
	conn  *net.TCPConn
	begin time.Time
	// name is where it goes, "" for an address; address is what the task connected to.
	name    string
	address string
	port    uint16
	proto   egress.Protocol
	in, out atomic.Int64
	closed  atomic.Bool
	// behind is the connection outwards where the flow has a socket of this process's in its place; nil elsewhere.
	behind io.Closer
	// server is where the task's socket is connected to, before redirection; who has made that socket, once identified.
	server     netip.AddrPort
	who        wire.Origin
	identified sync.Once
	// inspected says that the requests in its TLS are judged.
	inspected bool
	// flow and loop have the connection while conn is nil; killed says that nobody may go on with it. mu guards them.
	flow   *flow
	loop   *loop
	killed bool
}

// open registers a session; the decision refuses one that is over a limit.
func (g *Gateway) open(s *session) egress.Decision {
	if d := g.withinRequests(s); !d.Allowed {
		return d
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	limits := g.shared.Load().limits
	switch {
	case len(g.sessions) >= limits.Connections:
		return egress.Decision{Code: egress.OverLimit, Reason: fmt.Sprintf("%d connections are open, the most at once (limits.egressConnections)", len(g.sessions))}
	case s.name != "" && g.perName[s.name] >= g.config.Limits.ConnectionsPerName:
		return egress.Decision{Code: egress.OverLimit, Reason: fmt.Sprintf("%d connections to %s are open, the most at once", g.perName[s.name], s.name)}
	case !g.withinBytes(0):
		return egress.Decision{Code: egress.OverLimit, Reason: fmt.Sprintf("the %d bytes that may be sent are used up (limits.egressBytes)", limits.EgressBytes)}
	case !g.withinIngress(0):
		return egress.Decision{Code: egress.OverLimit, Reason: fmt.Sprintf("the %d bytes that may be received are used up (limits.ingressBytes)", limits.IngressBytes)}
	}
	g.sessions[s] = struct{}{}
	g.perName[s.name]++
	return egress.Decision{Allowed: true}
}

// withinRequests refuses what one name gets too much of. The gateway's own names are for reading what was refused.
func (g *Gateway) withinRequests(s *session) egress.Decision {
	limit, name := g.shared.Load().limits.RequestsPerName, firstOf(s.name, s.address)
	if limit == 0 || g.internalHost(s.name) != nil {
		return egress.Decision{Allowed: true}
	}
	if n := g.log.requests(name); n >= limit {
		return egress.Decision{Code: egress.OverLimit, Reason: fmt.Sprintf("%s has had %d connections and requests, the most in all (limits.egressRequests)", name, n)}
	}
	return egress.Decision{Allowed: true}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// withinBytes counts bytes from the task, withinIngress those to it.
func (g *Gateway) withinBytes(n int64) bool {
	return g.within("limits.egressBytes", "sent", g.sent.Add(n), n, g.shared.Load().limits.EgressBytes)
}

func (g *Gateway) withinIngress(n int64) bool {
	return g.within("limits.ingressBytes", "received", g.got.Add(n), n, g.shared.Load().limits.IngressBytes)
}

// within judges a sum to which n was added; the step over a limit is a line of the log.
func (g *Gateway) within(rule, what string, sum, n, limit int64) bool {
	if limit == 0 || sum < limit {
		return true
	}
	if sum-n < limit {
		g.log.add(Event{Event: "limit", Code: egress.OverLimit, Rule: rule, Reason: fmt.Sprintf("the %d bytes that may be %s are used up (%s)", limit, what, rule)})
	}
	return false
}

// close ends a session and logs what it moved.
func (s *session) close() {
	if s.closed.Swap(true) {
		return
	}
	s.g.mu.Lock()
	if s.conn != nil {
		s.conn.Close()
	}
	delete(s.g.sessions, s)
	if s.g.perName[s.name]--; s.g.perName[s.name] <= 0 {
		delete(s.g.perName, s.name)
	}
	s.g.mu.Unlock()
	s.letGo()
	e := s.event("close")
	e.In, e.Out, e.Millis = s.in.Load(), s.out.Load(), time.Since(s.begin).Milliseconds()
	s.g.log.add(e)
}

// speaks notes the protocol once it is known.
func (s *session) speaks(p egress.Protocol) {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	s.proto = p
}

func (s *session) event(kind string) Event {
	e := Event{Event: kind, Name: s.name, Address: s.address, Port: s.port, Protocol: s.proto, Inspected: s.inspected}
	return e.by(s.who)
}

// closeSessions resets the connections that which picks.
func (g *Gateway) closeSessions(which func(*session) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.sessions {
		if !which(s) {
			continue
		}
		if s.killed = true; s.flow != nil {
			s.loop.end(s.flow)
		} else {
			abort(s.conn)
		}
	}
}

// internalHost returns what serves a name of the gateway's own zone, nil for none.
func (g *Gateway) internalHost(name string) http.Handler {
	label, ok := strings.CutSuffix(name, internalZone)
	if !ok {
		return nil
	}
	return g.web.internal[label]
}
