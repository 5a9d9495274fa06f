package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Finalize reads the links, addresses and routes of ns and lets the task reach
// its peers, and its name servers and gateways on port 53. Call it at start,
// when the engine has attached its networks, and again whenever a network is
// connected or disconnected: what a call doesn't find is refused again. ns and
// its ownership are as for Install. Modes other than engine do nothing.
//
// nameservers are those of the resolv.conf that the engine made; never take
// them from a file of the image, which could open port 53 of any private
// address. If they are loopback (Docker's 127.0.0.11), add those of the host:
// the engine's resolver asks them from within this namespace. Metadata
// addresses among them are ignored, unless the cloud documents a resolver at
// that very address (Google, Oracle, Azure): then port 53 of it is reachable,
// and nothing else.
//
// Finalize also reads the addresses of the caller's own namespace, to tell the
// host from the peers. Errors: ErrOwnNamespace, ErrNotInstalled, as Install.
func (r *Rules) Finalize(ns *os.File, nameservers []netip.Addr) error {
	if r.policy.Mode != ModeEngine {
		return nil
	}
	if err := finalize(ns, nameservers); err != nil {
		return fmt.Errorf("finalize network rules: %w", err)
	}
	return nil
}

func finalize(ns *os.File, nameservers []netip.Addr) error {
	var nft, route *conn
	err := within(ns, func() (err error) {
		if nft, err = dial(unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		route, err = dial(unix.NETLINK_ROUTE)
		return err
	})
	defer nft.Close()
	defer route.Close()
	if err != nil {
		return err
	}
	f, err := readFacts(route)
	if err != nil {
		return err
	}
	a, ok := planAttached(f, nameservers).bounded()
	if !ok {
		return fmt.Errorf("more than %d gateways and host addresses", dynamicSizeMax)
	}
	b := newBatch(2 << 10)
	sets := attachedSets(a)
	for i := range sets {
		sets[i].encodeElements(b, true)
	}
	err = nft.transact(b.close(), func() []string { return b.steps })
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	return err
}

// readFacts asks no more than it needs: without an address on a link of its
// own, a namespace has no peers and no way out.
func readFacts(route *conn) (f facts, err error) {
	if f.addrs, err = route.addrs(); err != nil {
		return f, err
	}
	linked := false
	for _, a := range f.addrs {
		linked = linked || a.index != loopbackIndex
	}
	if !linked {
		return f, nil
	}
	if f.tuns, err = route.tuns(); err != nil {
		return f, err
	}
	if f.gateways, err = route.gateways(); err != nil {
		return f, err
	}
	host, err := dial(unix.NETLINK_ROUTE)
	if err != nil {
		return f, err
	}
	defer host.Close()
	hostAddrs, err := host.addrs()
	for _, a := range hostAddrs {
		f.hostIPs = append(f.hostIPs, a.local)
	}
	return f, err
}
