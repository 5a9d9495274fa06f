package netns

import (
	"net/netip"
	"slices"
	"strings"
)

// Nameservers returns the addresses of resolv.conf's nameserver lines, without
// zones and duplicates; other lines, and addresses that don't parse, are
// skipped as resolvers do. The file must be the engine's, see Finalize.
// Source: resolv.conf(5).
func Nameservers(resolvConf string) []netip.Addr {
	var out []netip.Addr
	for line := range strings.Lines(resolvConf) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		a, err := netip.ParseAddr(words[1])
		if err != nil {
			continue
		}
		if a = a.Unmap().WithZone(""); !slices.Contains(out, a) && len(out) < dynamicSizeMax/2 {
			out = append(out, a)
		}
	}
	return out
}
