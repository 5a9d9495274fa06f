package gateway

import (
	"errors"
	"fmt"
	"slices"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// maxMembers bounds a pod.
const maxMembers = 256

// shared is what the containers of a pod have in common, beside what the policy allows.
type shared struct {
	limits       wire.Limits // the lowest of each; 0 is none
	placeholders []placeholder
	// withheld are credentials that not all containers of the pod have. In a network that they share nobody can tell who
	// of them asks.
	withheld map[string]bool
}

// enact puts the policy of the pod into force, which is that of all its containers, each with the changes that were made
// while they run. On an error nothing has changed. The caller holds mu, or is the only one.
func (g *Gateway) enact(members []wire.Member, changes egress.Config) error {
	if len(members) > maxMembers {
		return fmt.Errorf("a pod of more than %d containers", maxMembers)
	}
	policy, err := egress.Compile(merge(g.config.Policy, changes))
	if err != nil {
		return err
	}
	if err := g.canInspect(policy); err != nil {
		return err
	}
	s := &shared{limits: g.config.Limits, withheld: map[string]bool{}}
	for i := range g.config.Credentials {
		if c := &g.config.Credentials[i]; c.Placeholder != "" {
			s.placeholders = append(s.placeholders, placeholder{c.Placeholder, c.Name})
		}
	}
	others := make([]*egress.Policy, 0, len(members))
	for i := range members {
		m := &members[i]
		other, err := egress.Compile(merge(m.Policy, changes))
		if err != nil {
			return fmt.Errorf("container %q: %w", m.Container, err)
		}
		if err := g.canInspect(other); err != nil {
			return fmt.Errorf("container %q: %w", m.Container, err)
		}
		others = append(others, other)
		tighten(&s.limits.EgressBytes, m.Limits.EgressBytes)
		tighten(&s.limits.IngressBytes, m.Limits.IngressBytes)
		tighten(&s.limits.RequestsPerName, m.Limits.RequestsPerName)
		tighten(&s.limits.Connections, m.Limits.Connections)
		for j := range g.config.Credentials {
			name := g.config.Credentials[j].Name
			if text := m.Placeholders[name]; text != "" {
				s.placeholders = append(s.placeholders, placeholder{text, name})
			} else {
				s.withheld[name] = true
			}
		}
	}
	g.members, g.changes = members, changes
	g.policy.Store(policy.And(others...))
	g.shared.Store(s)
	return nil
}

func tighten[T int | int64](have *T, other T) {
	if other > 0 && (*have == 0 || other < *have) {
		*have = other
	}
}

// admit adds a container of the pod, or replaces what it said before; dismiss takes one out.
func (g *Gateway) admit(m *wire.Member) error {
	if m == nil || m.Container == "" {
		return errors.New("nobody is named who joins")
	}
	return g.enact(append(g.without(m.Container), *m), g.changes)
}

func (g *Gateway) dismiss(m *wire.Member) error {
	if m == nil {
		return errors.New("nobody is named who leaves")
	}
	return g.enact(g.without(m.Container), g.changes)
}

func (g *Gateway) without(container string) []wire.Member {
	return slices.DeleteFunc(slices.Clone(g.members), func(m wire.Member) bool { return m.Container == container })
}
