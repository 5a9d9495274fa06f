package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// holdChain refuses everything but loopback until Settle replaces it.
const holdChain = "hold"

// Hold puts a drop policy into force in ns, a namespace that was made for one
// container and has no links yet: loopback passes, and whatever an engine
// attaches is closed. ModeNone is installed as it is, which is the same.
// Settle follows once the engine is done. ns, its ownership and errors are as
// for Install.
//
// It exists for speed. The engine's rules need connection tracking, whose first
// user on a host costs some 3 ms (14 hooks, each patched into the kernel's text
// while all CPUs wait); a container without a network never pays for them.
func (r *Rules) Hold(ns *os.File) error {
	if r.policy.Mode != ModeEngine {
		return r.Install(ns)
	}
	held := &Rules{policy: r.policy}
	held.packet, _ = planHold().encode()
	return held.Install(ns)
}

func planHold() *table {
	hold := noneOutput()
	hold.name = holdChain
	// As in the engine's rules: links come up while they are held.
	hold.rules = append([]rule{acceptNeighbours()}, hold.rules...)
	return &table{sets: []set{neighbourSet()}, chains: []chain{refusal(), hold, forward()}}
}

// Settle is for start, when the engine has attached its networks: where there
// is an address on a link other than loopback, it installs the rules, finalises
// them as Finalize does, and then lifts the hold; a namespace that is still
// without one stays held. There is no moment without rules. nameservers, ns and
// errors are as for Finalize.
func (r *Rules) Settle(ns *os.File, nameservers []netip.Addr) error {
	if r.policy.Mode != ModeEngine {
		return nil
	}
	linked, err := hasAddress(ns)
	if err != nil {
		return fmt.Errorf("settle network rules: %w", err)
	}
	if !linked {
		return nil
	}
	if err := r.Install(ns); err != nil {
		return err
	}
	if err := r.Finalize(ns, nameservers); err != nil {
		return err
	}
	if err := lift(ns); err != nil {
		return fmt.Errorf("settle network rules: %w", err)
	}
	return nil
}

// hasAddress reports whether ns has an address on a link other than loopback.
func hasAddress(ns *os.File) (bool, error) {
	route, err := dialIn(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return false, err
	}
	defer route.Close()
	addrs, err := route.addrs()
	for _, a := range addrs {
		if a.index != loopbackIndex {
			return true, err
		}
	}
	return false, err
}

// lift removes the hold; it is no error if there is none.
func lift(ns *os.File) error {
	nft, err := dialIn(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer nft.Close()
	b := newBatch(256)
	encodeLift(b)
	err = nft.transact(b.close(), func() []string { return b.steps })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// encodeLift adds what removes the hold. The kernel refuses a transaction with it (ENOENT) where there is none.
func encodeLift(b *batch) {
	b.nft(unix.NFT_MSG_DELRULE, 0, "empty chain "+holdChain)
	b.str(unix.NFTA_RULE_TABLE, tableName)
	b.str(unix.NFTA_RULE_CHAIN, holdChain)
	b.end()
	b.nft(unix.NFT_MSG_DELCHAIN, 0, "remove chain "+holdChain)
	b.str(unix.NFTA_CHAIN_TABLE, tableName)
	b.str(unix.NFTA_CHAIN_NAME, holdChain)
	b.end()
}

func acceptNeighbours() rule {
	return accept("icmpv6 type @neighbour", []expr{
		meta(reg, unix.NFT_META_L4PROTO), equal(unix.IPPROTO_ICMPV6), payload(reg, l4Base, 0, 1), lookup(reg, "neighbour"),
	})
}
