package profiles

import (
	"fmt"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// Inspects says what of the policy has TLS inspected, in words for an error; "" if nothing does. The host's administrator
// has to have turned inspection on for such a profile.
func (n *Network) Inspects() string {
	if n.Mode != NetworkGateway {
		return ""
	}
	for _, text := range n.Allow {
		if r, err := egress.ParseRule(text); err == nil && r.Inspects() {
			return fmt.Sprintf("the rule %q (methods or a path in TLS)", text)
		}
	}
	for i := range n.Credentials {
		if c := &n.Credentials[i]; c.Inspect {
			return fmt.Sprintf("the credential %q (inspect)", c.Name)
		}
	}
	return ""
}
