package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

const (
	// answerTTL is short: what the name resolves to outside changes without the task noticing, its address inside never.
	answerTTL = 60
	// dnsAtOnce bounds the questions that wait for an answer from outside.
	dnsAtOnce = 512
	// internalZone is the gateway's own: no name below it is ever asked for outside.
	internalZone = "." + wire.Zone
)

// dnsServer answers the task's questions.
type dnsServer struct {
	g     *Gateway
	slots chan struct{}
}

// serve answers on the sockets until ctx ends.
func (s *dnsServer) serve(ctx context.Context, packets []net.PacketConn, listeners []net.Listener) {
	var servers []*dns.Server
	for _, p := range packets {
		servers = append(servers, &dns.Server{PacketConn: p, Handler: s, UDPSize: dns.MinMsgSize, MsgAcceptFunc: acceptQuestion})
	}
	for _, l := range listeners {
		servers = append(servers, &dns.Server{
			Listener: l, Handler: s, MsgAcceptFunc: acceptQuestion, MaxTCPQueries: 128,
			ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		})
	}
	for _, srv := range servers {
		go srv.ActivateAndServe() //nolint:errcheck // ends with its socket
	}
	<-ctx.Done()
	for _, srv := range servers {
		srv.Shutdown() //nolint:errcheck // the process ends
	}
}

// acceptQuestion takes standard queries with one question and little beside it.
func acceptQuestion(h dns.Header) dns.MsgAcceptAction {
	const response, opcodeBits = 1 << 15, 0xf << 11
	switch {
	case h.Bits&response != 0:
		return dns.MsgIgnore
	case h.Bits&opcodeBits != 0:
		return dns.MsgRejectNotImplemented
	case h.Qdcount != 1 || h.Ancount > 0 || h.Nscount > 0 || h.Arcount > 2:
		return dns.MsgReject
	}
	return dns.MsgAccept
}

// ServeDNS implements dns.Handler.
func (s *dnsServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		m := new(dns.Msg)
		m.SetRcode(q, dns.RcodeServerFailure)
		w.WriteMsg(m) //nolint:errcheck // the client went away
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
	defer cancel()
	m := s.answer(ctx, q, w.RemoteAddr())
	size := dns.MinMsgSize
	if opt := q.IsEdns0(); opt != nil {
		size = max(size, min(int(opt.UDPSize()), 1232))
	}
	if w.LocalAddr().Network() == "udp" {
		m.Truncate(size)
	}
	w.WriteMsg(m) //nolint:errcheck // likewise
}

// asked is a question, and who it came from.
type asked struct {
	dns.Question
	from net.Addr
}

// by returns who asked. It is worth looking for where the answer is no.
func (s *dnsServer) by(q asked) (who wire.Origin) {
	if from, ok := q.from.(*net.UDPAddr); ok && !s.g.log.full() {
		who, _ = s.g.origins.datagram(from.AddrPort())
	}
	return who
}

// answer makes the reply to one question.
func (s *dnsServer) answer(ctx context.Context, q *dns.Msg, from net.Addr) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	if opt := q.IsEdns0(); opt != nil {
		m.SetEdns0(1232, false)
		if opt.Version() != 0 {
			m.Rcode = dns.RcodeBadVers
			return m
		}
	}
	question := asked{q.Question[0], from}
	if question.Qclass != dns.ClassINET {
		m.Rcode = dns.RcodeRefused
		return m
	}
	if question.Qtype == dns.TypePTR {
		s.pointer(m, question.Name)
		return m
	}
	name, err := egress.ParseHost(question.Name)
	if err != nil {
		s.negative(m, question, egress.Decision{Code: egress.BadName, Reason: err.Error()})
		return m
	}
	if strings.HasSuffix(name, internalZone) {
		s.internal(m, question, name)
		return m
	}
	d := s.g.resolvable(name)
	if !d.Allowed {
		s.negative(m, question, d)
		return m
	}
	s.allowed(ctx, m, question, name, d)
	return m
}

// allowed answers for a name that the policy lets pass. It exists inside if it exists outside and leads somewhere.
func (s *dnsServer) allowed(ctx context.Context, m *dns.Msg, question asked, name string, d egress.Decision) {
	var err error
	if s.g.proxy.serves(name) { // which may know names that nobody here does
		err = s.g.judgeAhead(ctx, name, 0)
	} else {
		_, err = s.g.resolve(ctx, name, 0)
	}
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		s.negative(m, question, refused.Decision)
		return
	case errors.Is(err, errNoName):
		m.Rcode = dns.RcodeNameError
		m.Ns = []dns.RR{startOfAuthority(question.Name)}
		return
	case err != nil:
		m.Rcode = dns.RcodeServerFailure
		s.g.log.add(Event{Event: "dns", Name: name, Code: egress.Unreachable, Reason: err.Error()})
		return
	}
	s.addressRecords(m, question, name)
	if question.Qtype == dns.TypeA || question.Qtype == dns.TypeAAAA {
		s.g.log.add(Event{Event: "dns", Name: name}.decided(d))
	}
}

// addressRecords answers A and AAAA with the addresses that stand for the name inside. Every other type exists and is
// empty: text and service records of an allowed name would be a way in, and HTTPS records carry addresses and keys of
// encrypted hellos, which would hide the name.
func (s *dnsServer) addressRecords(m *dns.Msg, question asked, name string) {
	v4, v6, ok := s.g.names.assign(name)
	if !ok {
		m.Rcode = dns.RcodeServerFailure
		s.g.log.add(Event{Event: "limit", Name: name, Reason: "the table of names is full"})
		return
	}
	header := dns.RR_Header{Name: question.Name, Rrtype: question.Qtype, Class: dns.ClassINET, Ttl: answerTTL}
	switch question.Qtype {
	case dns.TypeA:
		m.Answer = []dns.RR{&dns.A{Hdr: header, A: v4.AsSlice()}}
	case dns.TypeAAAA:
		m.Answer = []dns.RR{&dns.AAAA{Hdr: header, AAAA: v6.AsSlice()}}
	default:
		m.Ns = []dns.RR{startOfAuthority(question.Name)}
	}
}

// internal answers for the gateway's own zone.
func (s *dnsServer) internal(m *dns.Msg, question asked, name string) {
	if s.g.internalHost(name) == nil {
		m.Rcode = dns.RcodeNameError
		m.Ns = []dns.RR{startOfAuthority(question.Name)}
		return
	}
	s.addressRecords(m, question, name)
}

// negative says no in the way that resolvers take as final, with the reason for who can read it (RFC 8914).
func (s *dnsServer) negative(m *dns.Msg, question asked, d egress.Decision) {
	m.Rcode = dns.RcodeNameError
	m.Ns = []dns.RR{startOfAuthority(question.Name)}
	if opt := m.IsEdns0(); opt != nil {
		opt.Option = append(opt.Option, &dns.EDNS0_EDE{
			InfoCode: dns.ExtendedErrorCodeProhibited, ExtraText: "agentsafe " + string(d.Code) + ": " + d.Reason,
		})
	}
	s.g.log.add(Event{Event: "dns", Name: clip(strings.TrimSuffix(question.Name, "."))}.decided(d).by(s.by(question)))
}

// pointer answers reverse questions from the table of names: they tell the task nothing that it didn't ask for.
func (s *dnsServer) pointer(m *dns.Msg, unsafeName string) {
	if a, ok := reverseAddress(unsafeName); ok {
		if name, ok := s.g.names.lookup(a); ok {
			m.Answer = []dns.RR{&dns.PTR{
				Hdr: dns.RR_Header{Name: unsafeName, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: answerTTL}, Ptr: dns.Fqdn(name),
			}}
			return
		}
	}
	m.Rcode = dns.RcodeNameError
	m.Ns = []dns.RR{startOfAuthority(unsafeName)}
}

// reverseAddress parses the name of a reverse question.
func reverseAddress(name string) (netip.Addr, bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		p := strings.Split(rest, ".")
		if len(p) != 4 {
			return netip.Addr{}, false
		}
		a, err := netip.ParseAddr(p[3] + "." + p[2] + "." + p[1] + "." + p[0])
		return a, err == nil
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa")
	if !ok || len(rest) != 63 {
		return netip.Addr{}, false
	}
	var b strings.Builder
	for i := 62; i >= 0; i -= 2 {
		b.WriteByte(rest[i])
		if i%8 == 0 && i > 0 {
			b.WriteByte(':')
		}
	}
	a, err := netip.ParseAddr(b.String())
	return a, err == nil
}

func startOfAuthority(name string) dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 5},
		Ns:  "gateway.agentsafe.internal.", Mbox: "gateway.agentsafe.internal.", Serial: 1, Refresh: 5, Retry: 5, Expire: 5, Minttl: 5,
	}
}

// clip bounds what of a hostile name goes into a log line.
func clip(s string) string {
	if len(s) > 253 {
		return s[:253]
	}
	return s
}
