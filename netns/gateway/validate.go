package gateway

import (
	"errors"
	"fmt"

	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// validate checks what egress.Compile does not.
func validate(c *wire.Config) error {
	if !c.IPv4.IsValid() || !c.IPv4.Addr().Is4() || c.IPv4.Bits() > 20 || !c.IPv6.IsValid() || !c.IPv6.Addr().Is6() || c.IPv6.Bits() > 96 {
		return errors.New("ipv4, ipv6: want ranges with room for names")
	}
	for i := range c.Credentials {
		if err := validateCredential(&c.Credentials[i]); err != nil {
			return fmt.Errorf("credential %q: %w", c.Credentials[i].Name, err)
		}
	}
	return nil
}
