package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Bounds of what is kept of answers.
const (
	minTTL        = 5 * time.Second
	maxTTL        = 5 * time.Minute
	negativeTTL   = 10 * time.Second
	maxCached     = 8192
	maxAddresses  = 32
	upstreamWait  = 2 * time.Second
	upstreamTries = 2
)

// errNoName is the clear negative answer.
var errNoName = errors.New("no such name")

// resolver asks the name servers of the host for the names that the policy allows, and for nothing else.
type resolver struct {
	servers []netip.AddrPort
	mu      sync.Mutex
	cache   map[string]*answer
}

// answer is what a name resolved to, shared by all who ask at the same time.
type answer struct {
	ready   chan struct{}
	expires time.Time
	addrs   []netip.Addr
	err     error
}

func newResolver(servers []netip.AddrPort) *resolver {
	return &resolver{servers: servers, cache: map[string]*answer{}}
}

// lookup returns the addresses of a name, both families, unfiltered. The error is errNoName if there is none.
func (r *resolver) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	r.mu.Lock()
	a := r.cache[name]
	if a != nil && a.done() && time.Now().After(a.expires) {
		a = nil
	}
	if a == nil {
		a = &answer{ready: make(chan struct{})}
		r.makeRoom()
		r.cache[name] = a
		go r.fill(a, name)
	}
	r.mu.Unlock()
	select {
	case <-a.ready:
		return a.addrs, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("resolve %s: %w", name, context.Cause(ctx))
	}
}

// known returns the addresses of a name that was looked up a moment ago.
func (r *resolver) known(name string) ([]netip.Addr, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.cache[name]
	if a == nil || !a.done() || a.err != nil || time.Now().After(a.expires) {
		return nil, false
	}
	return a.addrs, true
}

func (a *answer) done() bool {
	select {
	case <-a.ready:
		return true
	default:
		return false
	}
}

func (r *resolver) makeRoom() {
	if len(r.cache) < maxCached {
		return
	}
	now := time.Now()
	for k, a := range r.cache {
		if a.done() && (now.After(a.expires) || len(r.cache) >= maxCached) {
			delete(r.cache, k)
		}
	}
}

// fill asks for both families at once.
func (r *resolver) fill(a *answer, name string) {
	type part struct {
		addrs []netip.Addr
		ttl   time.Duration
		err   error
	}
	parts := make([]part, 2)
	var wait sync.WaitGroup
	for i, kind := range []uint16{dns.TypeAAAA, dns.TypeA} {
		wait.Go(func() {
			p := &parts[i]
			p.addrs, p.ttl, p.err = r.ask(name, kind)
		})
	}
	wait.Wait()
	ttl := maxTTL
	for _, p := range parts {
		if len(p.addrs) > 0 {
			a.addrs, ttl = append(a.addrs, p.addrs...), min(ttl, p.ttl)
		}
	}
	if len(a.addrs) == 0 {
		// One family's NXDOMAIN or empty answer does not speak for the other's failure.
		a.err, ttl = parts[0].err, negativeTTL
		if a.err == nil || errors.Is(a.err, errNoName) {
			a.err = parts[1].err
		}
		if a.err == nil {
			a.err = errNoName
		}
		if !errors.Is(a.err, errNoName) {
			ttl = time.Second
		}
	}
	a.expires = time.Now().Add(ttl)
	close(a.ready)
}

// ask returns the addresses of one family. No addresses and no error: the name exists without one.
func (r *resolver) ask(name string, kind uint16) ([]netip.Addr, time.Duration, error) {
	err := errors.New("no name server is known")
	for range upstreamTries {
		for _, server := range r.servers {
			var reply *dns.Msg
			if reply, err = exchange(server, name, kind); err != nil {
				continue
			}
			switch reply.Rcode {
			case dns.RcodeSuccess:
				addrs, ttl := addressesOf(reply, name, kind)
				return addrs, ttl, nil
			case dns.RcodeNameError:
				return nil, 0, errNoName
			}
			err = fmt.Errorf("name server %s answers %s", server, dns.RcodeToString[reply.Rcode])
		}
	}
	return nil, 0, fmt.Errorf("resolve %s: %w", name, err)
}

// exchange asks by UDP, and by TCP what does not fit. The client checks id and question of the answer.
func exchange(server netip.AddrPort, name string, kind uint16) (*dns.Msg, error) {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), kind)
	m.SetEdns0(1232, false)
	client := dns.Client{Timeout: upstreamWait, UDPSize: 1232}
	reply, _, err := client.Exchange(m, server.String())
	if err == nil && reply.Truncated {
		client.Net = "tcp"
		reply, _, err = client.Exchange(m, server.String())
	}
	return reply, err
}

// addressesOf follows the chain of CNAMEs from the name that was asked for; records beside it count for nothing.
func addressesOf(reply *dns.Msg, name string, kind uint16) ([]netip.Addr, time.Duration) {
	var out []netip.Addr
	ttl, at := maxTTL, dns.Fqdn(name)
	for range 16 {
		next := ""
		for _, rr := range reply.Answer {
			if !strings.EqualFold(rr.Header().Name, at) {
				continue
			}
			var a netip.Addr
			switch rr := rr.(type) {
			case *dns.CNAME:
				next = rr.Target
			case *dns.A:
				a, _ = netip.AddrFromSlice(rr.A.To4())
			case *dns.AAAA:
				a, _ = netip.AddrFromSlice(rr.AAAA.To16())
			}
			if a.IsValid() && rr.Header().Rrtype == kind && len(out) < maxAddresses {
				out = append(out, a)
			}
			ttl = min(ttl, time.Duration(rr.Header().Ttl)*time.Second)
		}
		if next == "" || len(out) > 0 {
			break
		}
		at = next
	}
	return out, max(ttl, minTTL)
}
