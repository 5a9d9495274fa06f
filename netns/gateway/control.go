package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// Status is the answer.
type Status struct {
	Error  string        `json:"error,omitempty"`
	Policy egress.Config `json:"policy"`
	// Changes are the rules that were added while the container runs.
	Changes     egress.Config `json:"changes"`
	Connections []Connection  `json:"connections"`
	Counts      Counts        `json:"counts"`
	Refused     []Event       `json:"refused"`
	Credentials []string      `json:"credentials,omitempty"`
}

// Connection is one that is open.
type Connection struct {
	Name     string          `json:"name,omitempty"`
	Address  string          `json:"address,omitempty"`
	Port     uint16          `json:"port"`
	Protocol egress.Protocol `json:"protocol,omitempty"`
	Seconds  int64           `json:"seconds"`
}

const maxRequestBytes = 64 << 10

// control answers on a socket that only the host's root can open.
func (g *Gateway) control(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		go g.answer(c)
	}
}

func (g *Gateway) answer(c *net.UnixConn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second)) //nolint:errcheck // Decode says what is wrong
	var r wire.Request
	var err error
	if err = json.NewDecoder(io.LimitReader(c, maxRequestBytes)).Decode(&r); err == nil {
		err = g.apply(r)
	}
	s := g.status()
	if err != nil {
		s.Error = err.Error()
	}
	json.NewEncoder(c).Encode(s) //nolint:errcheck // whoever asked went away
}

// apply changes the policy as a whole or not at all. Connections that the new one does not allow are reset; the others
// do not notice.
func (g *Gateway) apply(r wire.Request) error {
	if r.Op == "show" {
		return nil
	}
	rule, err := egress.ParseRule(r.Rule)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	changes := egress.Config{Allow: g.changes.Allow, Deny: g.changes.Deny}
	switch r.Op {
	case "allow":
		if err := g.withinCeiling(rule); err != nil {
			return err
		}
		changes.Allow = append(changes.Allow[:len(changes.Allow):len(changes.Allow)], r.Rule)
	case "deny":
		changes.Deny = append(changes.Deny[:len(changes.Deny):len(changes.Deny)], r.Rule)
	default:
		return fmt.Errorf("operation %q is not show, allow or deny", r.Op)
	}
	policy, err := egress.Compile(merge(g.config.Policy, changes))
	if err != nil {
		return err
	}
	g.changes = changes
	g.policy.Store(policy)
	g.log.add(Event{Event: "control", Rule: r.Rule, Reason: r.Op})
	if r.Op == "deny" {
		go g.closeSessions(func(s *session) bool { return !g.stillAllowed(s, policy) })
	}
	return nil
}

func (g *Gateway) withinCeiling(rule egress.Rule) error {
	if g.config.Ceiling == nil {
		return nil
	}
	ceiling, err := egress.Compile(*g.config.Ceiling)
	if err != nil {
		return err
	}
	if !ceiling.Covers(rule) {
		return fmt.Errorf("the rule %q is beyond what the host's policy permits to allow", rule)
	}
	return nil
}

// stillAllowed judges an open connection by a new policy.
func (g *Gateway) stillAllowed(s *session, p *egress.Policy) bool {
	if s.name == "" || g.internalHost(s.name) != nil {
		return s.name != "" || p.ConnectAddress(addrPort(s), s.proto).Allowed
	}
	return p.Connect(s.name, s.port, s.proto).Allowed
}

func merge(a, b egress.Config) egress.Config {
	a.Allow = append(append([]string{}, a.Allow...), b.Allow...)
	a.Deny = append(append([]string{}, a.Deny...), b.Deny...)
	return a
}

func (g *Gateway) status() Status {
	s := Status{Policy: g.config.Policy}
	s.Refused, s.Counts = g.log.snapshot()
	for i := range g.config.Credentials {
		s.Credentials = append(s.Credentials, g.config.Credentials[i].Name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Changes = g.changes
	for c := range g.sessions {
		s.Connections = append(s.Connections, Connection{
			Name: c.name, Address: c.address, Port: c.port, Protocol: c.proto, Seconds: int64(time.Since(c.begin).Seconds()),
		})
	}
	return s
}
