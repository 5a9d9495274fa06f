package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

func testConfig(allow ...string) wire.Config {
	return wire.Config{
		Container: "c", IPv4: netip.MustParsePrefix("198.18.0.0/15"), IPv6: netip.MustParsePrefix("fd61:6773:6166:6500::/64"),
		Policy: egress.Config{Allow: allow},
	}
}

func newTest(t testing.TB, c wire.Config) *Gateway {
	t.Helper()
	g, err := New(c, nil, Trust{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestNames(t *testing.T) {
	c := testConfig()
	n, again := newNames(c.IPv4, c.IPv6), newNames(c.IPv4, c.IPv6)
	seen := map[netip.Addr]string{}
	for i := range 3000 {
		name := fmt.Sprintf("host-%d.test", i)
		v4, v6, ok := n.assign(name)
		if !ok || !c.IPv4.Contains(v4) || !c.IPv6.Contains(v6) || seen[v4] != "" || seen[v6] != "" {
			t.Fatalf("%s: %s %s %v", name, v4, v6, ok)
		}
		seen[v4], seen[v6] = name, name
		if a, _, _ := n.assign(name); a != v4 {
			t.Fatalf("%s: %s, then %s", name, v4, a)
		}
		if a, _, _ := again.assign(name); a != v4 {
			t.Fatalf("%s: a gateway that was started again gives %s, not %s", name, a, v4)
		}
	}
	for a, name := range seen {
		if got, ok := n.lookup(a); !ok || got != name {
			t.Errorf("%s is %q, want %q", a, got, name)
		}
	}
	for _, a := range []string{"198.18.0.1", "198.19.255.255", "127.0.0.1", "fd61:6773:6166:6500:ffff::fffe", "fd61:6773:6166:6500:1::100", "::1"} {
		if name, ok := n.lookup(netip.MustParseAddr(a)); ok {
			t.Errorf("%s is %q", a, name)
		}
	}
	for i := range maxNames {
		n.assign(fmt.Sprintf("more-%d.test", i))
	}
	if _, _, ok := n.assign("one-too-many.test"); ok {
		t.Error("the table has no end")
	}
}

func TestWildcardLimits(t *testing.T) {
	c := testConfig("*.wild.test", "exact.test")
	c.Limits.NamesPerMinute = 5
	g := newTest(t, c)
	for name, allowed := range map[string]bool{
		"www.wild.test": true, "d111111abcdef8.wild.test": true, strings.Repeat("a", 41) + ".wild.test": false,
		strings.Repeat("ab.", 45) + "wild.test": false, "q7m2zk4xw9t3bv8n5hy6jc1rpdlf0gsa.wild.test": false, "exact.test": true,
	} {
		if d := g.resolvable(name); d.Allowed != allowed {
			t.Errorf("%s: %+v", name, d)
		}
	}
	refused := 0
	for i := range 10 {
		if d := g.resolvable(fmt.Sprintf("n%d.wild.test", i)); d.Code == egress.OverLimit {
			refused++
		}
	}
	if refused != 7 { // two names were new above
		t.Errorf("%d of 10 new names were refused", refused)
	}
	if !g.resolvable("www.wild.test").Allowed {
		t.Error("a known name is refused")
	}
}

// The log is bounded in lines a second; what is left out is counted.
func TestLogFlood(t *testing.T) {
	l := &log{container: "c"}
	for range 10000 {
		l.add(Event{Event: "dns", Name: "x"}.decided(egress.Decision{Code: egress.NoRule}))
	}
	refusals, counts := l.snapshot()
	if counts.Refused != 10000 || len(refusals) != refusalsKept || l.suppressed == 0 {
		t.Errorf("%d counted, %d kept, %d suppressed", counts.Refused, len(refusals), l.suppressed)
	}
}

func TestAddressesOf(t *testing.T) {
	reply := new(dns.Msg)
	for _, line := range []string{
		"a.test. 60 IN CNAME b.test.", "b.test. 30 IN CNAME c.test.", "c.test. 40 IN A 93.184.216.34", "c.test. 40 IN A 93.184.216.35",
		"evil.test. 60 IN A 10.0.0.1", // not asked for
	} {
		rr, err := dns.NewRR(line)
		if err != nil {
			t.Fatal(err)
		}
		reply.Answer = append(reply.Answer, rr)
	}
	addrs, ttl := addressesOf(reply, "A.test", dns.TypeA)
	if fmt.Sprint(addrs) != "[93.184.216.34 93.184.216.35]" || ttl != 30*time.Second {
		t.Errorf("%v %v", addrs, ttl)
	}
	loop := new(dns.Msg)
	for _, line := range []string{"a.test. 60 IN CNAME b.test.", "b.test. 60 IN CNAME a.test."} {
		rr, _ := dns.NewRR(line)
		loop.Answer = append(loop.Answer, rr)
	}
	if addrs, _ := addressesOf(loop, "a.test", dns.TypeA); len(addrs) != 0 {
		t.Errorf("a loop has addresses: %v", addrs)
	}
}

func TestReverse(t *testing.T) {
	for name, want := range map[string]string{
		"34.216.184.93.in-addr.arpa.": "93.184.216.34",
		"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.": "2001:db8::1",
		"x.in-addr.arpa.": "", "1.2.3.in-addr.arpa.": "", "a.ip6.arpa.": "",
	} {
		a, ok := reverseAddress(name)
		if ok != (want != "") || ok && a.String() != want {
			t.Errorf("%s: %v %v", name, a, ok)
		}
	}
}

// Rules change as a whole or not at all, and never beyond the host's.
func TestControl(t *testing.T) {
	c := testConfig("a.test")
	c.Ceiling = &egress.Config{Allow: []string{"*.test:443"}}
	g := newTest(t, c)
	for _, r := range []wire.Request{
		{Op: "allow", Rule: "b.example"}, {Op: "allow", Rule: "10.0.0.0/8:443"}, {Op: "allow", Rule: "not a rule"}, {Op: "drop", Rule: "a.test"},
	} {
		if err := g.apply(r); err == nil {
			t.Errorf("%+v: no error", r)
		}
	}
	if g.resolvable("b.example").Allowed || g.resolvable("b.test").Allowed {
		t.Error("a refused change has an effect")
	}
	if err := g.apply(wire.Request{Op: "allow", Rule: "b.test"}); err != nil || !g.resolvable("b.test").Allowed {
		t.Errorf("allow: %v", err)
	}
	if err := g.apply(wire.Request{Op: "deny", Rule: "a.test:1-65535"}); err != nil || g.resolvable("a.test").Allowed || !g.resolvable("b.test").Allowed {
		t.Errorf("deny: %v", err)
	}
}

// What one container of a pod must not reach, none does; and it is again as before when that one has left.
func TestPod(t *testing.T) {
	c := testConfig("*.test")
	c.Limits.EgressBytes = 1000
	c.Credentials = []wire.Credential{{Name: "model", Host: "api.test", Port: 443, Present: "bearer", Secret: "s", Placeholder: "ph-1"}}
	c.Ceiling = &egress.Config{Allow: []string{"*.test:443", "*.example:443"}}
	g := newTest(t, c)
	join := func(m wire.Member) error { return g.apply(wire.Request{Op: "join", Member: &m}) }
	if err := join(wire.Member{Container: "b", Policy: egress.Config{Allow: []string{"a.test", "x.example"}}, Limits: wire.Limits{EgressBytes: 100}, Ceiling: &egress.Config{Allow: []string{"*.test:443"}}}); err != nil {
		t.Fatal(err)
	}
	if !g.resolvable("a.test").Allowed || g.resolvable("b.test").Allowed || g.resolvable("x.example").Allowed {
		t.Error("the policy is not that of both")
	}
	if s := g.shared.Load(); s.limits.EgressBytes != 100 || !s.withheld["model"] {
		t.Errorf("%+v", s)
	}
	if err := g.apply(wire.Request{Op: "allow", Rule: "y.example"}); err == nil {
		t.Error("a rule beyond the ceiling of one of them")
	}
	if err := join(wire.Member{Container: "c", Policy: egress.Config{Allow: []string{"not a rule"}}}); err == nil || !g.resolvable("a.test").Allowed {
		t.Errorf("a policy that is none: %v", err)
	}
	// Joining again replaces.
	if err := join(wire.Member{Container: "b", Policy: egress.Config{Allow: []string{"b.test"}}, Placeholders: map[string]string{"model": "ph-2"}}); err != nil {
		t.Fatal(err)
	}
	if g.resolvable("a.test").Allowed || !g.resolvable("b.test").Allowed {
		t.Error("an old policy of a container holds on")
	}
	if s := g.shared.Load(); s.withheld["model"] || !holdsPlaceholder("Bearer ph-2", s.placeholders) || !holdsPlaceholder("ph-1", s.placeholders) {
		t.Errorf("%+v", s)
	}
	if err := g.apply(wire.Request{Op: "allow", Rule: "c.test"}); err != nil || !g.resolvable("c.test").Allowed {
		t.Errorf("allow: %v", err)
	}
	if err := g.apply(wire.Request{Op: "leave", Member: &wire.Member{Container: "b"}}); err != nil || !g.resolvable("a.test").Allowed || g.shared.Load().limits.EgressBytes != 1000 {
		t.Errorf("leave: %v", err)
	}
	for _, op := range []string{"join", "leave"} {
		if err := g.apply(wire.Request{Op: op}); err == nil {
			t.Errorf("%s of nobody", op)
		}
	}
}

// Each name's share is counted, bounded, and written down at the end.
func TestUsage(t *testing.T) {
	c := testConfig("*.test")
	c.Limits.RequestsPerName, c.Limits.IngressBytes = 3, 100
	out, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	g, err := New(c, out, Trust{})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{g: g, name: "a.test", port: 443}
	for range 2 {
		g.log.add(s.event("connect").decided(egress.Decision{Allowed: true}))
	}
	g.log.add(s.event("request").decided(egress.Decision{Allowed: true}))
	g.log.add(Event{Event: "close", Name: "a.test", In: 7, Out: 8})
	g.log.add(Event{Event: "dns", Name: "b.test"}.decided(egress.Decision{Code: egress.NoRule}))
	if d := g.open(s); d.Allowed || d.Code != egress.OverLimit || !strings.Contains(d.Reason, "limits.egressRequests") {
		t.Errorf("a fourth request: %+v", d)
	}
	if d := g.open(&session{g: g, name: "c.test", port: 443}); !d.Allowed {
		t.Errorf("another name: %+v", d)
	}
	g.got.Add(100)
	if d := g.open(&session{g: g, name: "d.test", port: 443}); d.Allowed || !strings.Contains(d.Reason, "limits.ingressBytes") {
		t.Errorf("beyond the bytes: %+v", d)
	}
	for i := range 2 * maxUsage {
		g.log.add(Event{Event: "dns", Name: fmt.Sprintf("n%d.test", i)}.decided(egress.Decision{Code: egress.NoRule}))
	}
	if n := len(g.log.usages()); n > maxUsage+1 {
		t.Errorf("%d names are counted", n)
	}
	g.log.summarise()
	text, err := os.ReadFile(out.Name())
	for _, want := range []string{
		`"event":"summary","name":"a.test","usage":{"connections":2,"requests":1,"refused":0,"bytesIn":7,"bytesOut":8}`, `"name":"(others)","usage":{"connections":0`,
	} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("no %s in the log (%v)", want, err)
		}
	}
}

func FuzzDNS(f *testing.F) {
	q := new(dns.Msg)
	q.SetQuestion("example.com.", dns.TypeA)
	packed, err := q.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed)
	q.SetQuestion("1.0.0.127.in-addr.arpa.", dns.TypePTR)
	if packed, err = q.Pack(); err != nil {
		f.Fatal(err)
	}
	f.Add(packed)
	g := newTest(f, testConfig("allowed.test"))
	s := &dnsServer{g: g, slots: make(chan struct{}, 1)}
	f.Fuzz(func(t *testing.T, data []byte) {
		q := new(dns.Msg)
		if q.Unpack(data) != nil || len(q.Question) != 1 || strings.HasSuffix(strings.ToLower(q.Question[0].Name), "allowed.test.") {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		m := s.answer(ctx, q, nil)
		for _, rr := range m.Answer {
			if a, ok := rr.(*dns.A); ok && !strings.HasSuffix(strings.ToLower(q.Question[0].Name), internalZone+".") {
				t.Errorf("%q has the address %s", q.Question[0].Name, a.A)
			}
		}
		if _, err := m.Pack(); err != nil && len(q.Question[0].Name) < 250 {
			t.Errorf("answer to %q: %v", q.Question[0].Name, err)
		}
	})
}
