package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
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
	// Members are the other containers of the pod, whose policies hold as well.
	Members []string `json:"members,omitempty"`
	// Usage is what each name has had.
	Usage map[string]Usage `json:"usage"`
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
	g.mu.Lock()
	defer g.mu.Unlock()
	e := Event{Event: "control", Rule: r.Rule, Reason: r.Op}
	var err error
	switch r.Op {
	case "allow", "deny":
		err = g.change(r.Op, r.Rule)
	case "join":
		if err = g.admit(r.Member); err == nil {
			e.Rule = "container " + r.Member.Container
		}
	case "leave":
		if err = g.dismiss(r.Member); err == nil {
			e.Rule = "container " + r.Member.Container
		}
	default:
		return fmt.Errorf("operation %q is not show, allow, deny, join or leave", r.Op)
	}
	if err != nil {
		return err
	}
	g.log.add(e)
	if r.Op == "deny" || r.Op == "join" {
		policy := g.policy.Load()
		go g.closeSessions(func(s *session) bool { return !g.stillAllowed(s, policy) })
	}
	return nil
}

// change adds a rule to those that were added before.
func (g *Gateway) change(op, text string) error {
	rule, err := egress.ParseRule(text)
	if err != nil {
		return err
	}
	changes := egress.Config{Allow: g.changes.Allow, Deny: g.changes.Deny}
	if op == "deny" {
		changes.Deny = append(slices.Clip(changes.Deny), text)
	} else {
		changes.Allow = append(slices.Clip(changes.Allow), text)
		ceilings := []*egress.Config{g.config.Ceiling}
		for i := range g.members {
			ceilings = append(ceilings, g.members[i].Ceiling)
		}
		for _, c := range ceilings {
			if err := underCeiling(rule, c); err != nil {
				return err
			}
		}
	}
	return g.enact(g.members, changes)
}

// underCeiling refuses a rule that allows more than a ceiling; nil is none.
func underCeiling(rule egress.Rule, ceiling *egress.Config) error {
	if ceiling == nil {
		return nil
	}
	policy, err := egress.Compile(*ceiling)
	if err != nil {
		return err
	}
	if !policy.Covers(rule) {
		return fmt.Errorf("the rule %q is beyond what the host's policy permits to allow: the profile of the runtime's handler, "+
			"and `allowWhileRunning` below `[network]` in /etc/agentsafe/config.toml for containers that are created later", rule)
	}
	return nil
}

// stillAllowed judges an open connection by a new policy. One that is relayed as it is does not stay where the policy judges
// the requests in it now.
func (g *Gateway) stillAllowed(s *session, p *egress.Policy) bool {
	if s.name == "" || g.internalHost(s.name) != nil {
		return s.name != "" || p.ConnectAddress(addrPort(s), s.proto).Allowed
	}
	d := p.Connect(s.name, s.port, s.proto)
	return d.Allowed && (!d.Inspect || s.inspected)
}

func merge(a, b egress.Config) egress.Config {
	a.Allow = append(append([]string{}, a.Allow...), b.Allow...)
	a.Deny = append(append([]string{}, a.Deny...), b.Deny...)
	return a
}

func (g *Gateway) status() Status {
	s := Status{Policy: g.config.Policy, Usage: g.log.usages()}
	s.Refused, s.Counts = g.log.snapshot()
	for i := range g.config.Credentials {
		s.Credentials = append(s.Credentials, g.config.Credentials[i].Name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Changes = g.changes
	for i := range g.members {
		s.Members = append(s.Members, g.members[i].Container)
	}
	for c := range g.sessions {
		s.Connections = append(s.Connections, Connection{
			Name: c.name, Address: c.address, Port: c.port, Protocol: c.proto, Seconds: int64(time.Since(c.begin).Seconds()),
		})
	}
	return s
}
