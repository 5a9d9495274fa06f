package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// gatewayChain begins the names of the chains that hand connections to a gateway.
const gatewayChain = "gateway-"

// Constants of linux/netfilter/nf_tables.h that x/sys lacks.
const (
	nftaSocketKey     = 1
	nftaSocketDreg    = 2
	nftaSocketLevel   = 3
	nftSocketCgroupV2 = 3
)

// ErrOtherGateway is returned where another policy's gateway serves the namespace already.
var ErrOtherGateway = errors.New("another gateway serves this network namespace")

// GatewayRules describe how a namespace's connections reach its gateway.
type GatewayRules struct {
	// Tag names the policy; equal tags are one gateway.
	Tag string
	// TCPPort and DNSPort are the gateway's on loopback, of both families.
	TCPPort, DNSPort uint16
	// CgroupID is the id of a cgroup of the first level of the cgroup2 hierarchy, whose sockets are exempt: the
	// gateway's own, where it dials from within the namespace. 0 exempts nothing.
	CgroupID uint64
	// Own are the namespace's own addresses, which stay reachable from within.
	Own []netip.Addr
	// TellRefused has what is refused be told to who has the socket of OpenRefusedLog, where the kernel can.
	TellRefused bool
}

// planGateway compiles the rules. It makes no syscalls.
//
// Redirection comes first in the hook, before an engine's own (Docker's resolver at 127.0.0.11); the filter comes last
// and judges what is left: loopback, the namespace's own addresses, replies to inbound connections. All else is refused,
// so a gateway that is gone means no network.
func planGateway(g GatewayRules) *table {
	own4, own6 := splitFamilies(g.Own)
	redirect := []rule{
		{"udp dport 53 redirect to :" + portText(g.DNSPort), slices.Concat(toPort(unix.IPPROTO_UDP, 53), redirectTo(g.DNSPort))},
		{"tcp dport 53 redirect to :" + portText(g.DNSPort), slices.Concat(toPort(unix.IPPROTO_TCP, 53), redirectTo(g.DNSPort))},
	}
	passed := []rule{
		acceptPrefix("ip daddr 127.0.0.0/8", netip.MustParsePrefix("127.0.0.0/8")),
		acceptPrefix("ip6 daddr ::1", netip.MustParsePrefix("::1/128")),
		accept("ip daddr @own4", append(loadDaddr(true), lookup(reg, "own4"))),
		accept("ip6 daddr @own6", append(loadDaddr(false), lookup(reg, "own6"))),
	}
	redirect = append(redirect, passed...)
	redirect = append(redirect, rule{"meta l4proto tcp redirect to :" + portText(g.TCPPort), slices.Concat(
		[]expr{meta(reg, unix.NFT_META_L4PROTO), equal(unix.IPPROTO_TCP)}, redirectTo(g.TCPPort))})
	filter := []rule{acceptNeighbours()}
	if g.CgroupID != 0 {
		exempt := accept(fmt.Sprintf("socket cgroupv2 level 1 %d", g.CgroupID), inCgroup(g.CgroupID))
		redirect = append([]rule{exempt}, redirect...)
		filter = append(filter, exempt)
	}
	filter = append(filter,
		// As in engineOutput: the reset of a refused connection, then forged "inbound" connections.
		accept("ct direction reply ct state related fib daddr type local", slices.Concat(isReply(), ctState(ctRelated), isLocal())),
		rule{"fib saddr type != local drop", []expr{
			fibType(unix.NFTA_FIB_F_SADDR), compare(unix.NFT_CMP_NEQ, host32(unix.RTN_LOCAL)...), verdict(nfDrop, ""),
		}})
	filter = append(filter, passed...)
	filter = append(filter,
		accept("ct direction reply ct state established,related", slices.Concat(isReply(), ctState(ctEstablished|ctRelated))))
	if g.TellRefused {
		filter = append(filter, tellRefused())
	}
	filter = append(filter, refuse("", nil))
	return &table{
		sets: []set{neighbourSet(), ownSet("own4", keyAddr4(), own4), ownSet("own6", keyAddr6(), own6)},
		chains: []chain{
			refusal(),
			{name: gatewayChain + g.Tag, hook: hook{name: "output", num: unix.NF_INET_LOCAL_OUT}, rules: filter},
			{name: "to-gateway", hook: hook{name: "output", num: unix.NF_INET_LOCAL_OUT, nat: true}, rules: redirect},
			forward(),
		},
	}
}

func portText(p uint16) string { return fmt.Sprint(p) }

func ownSet(name string, key setKey, addrs []netip.Addr) set {
	s := addrSet(name, key, addrs)
	s.sizeMax = dynamicSizeMax
	return s
}

func acceptPrefix(text string, p netip.Prefix) rule { return accept(text, inPrefix(p)) }

// toPort matches a protocol and a destination port.
func toPort(proto byte, port uint16) []expr {
	return []expr{meta(reg, unix.NFT_META_L4PROTO), equal(proto), payload(reg, l4Base, 2, 2), equal(byte(port>>8), byte(port))}
}

// redirectTo sends a connection to a port of this namespace's loopback.
func redirectTo(port uint16) []expr {
	return []expr{
		named("immediate", func(b *batch) {
			b.u32(unix.NFTA_IMMEDIATE_DREG, reg)
			b.nest(unix.NFTA_IMMEDIATE_DATA, func() { b.bytes(unix.NFTA_DATA_VALUE, []byte{byte(port >> 8), byte(port)}) })
		}),
		named("redir", func(b *batch) { b.u32(unix.NFTA_REDIR_REG_PROTO_MIN, reg) }),
	}
}

// inCgroup matches sockets by the cgroup that made them, which a task can't choose: it would have to move itself into a
// cgroup of the host. Source: e0bb96db96f8 ("netfilter: nft_socket: add support for cgroupsv2"), Linux 5.13.
func inCgroup(id uint64) []expr {
	return []expr{
		named("socket", func(b *batch) {
			b.u32(nftaSocketKey, nftSocketCgroupV2)
			b.u32(nftaSocketDreg, reg)
			b.u32(nftaSocketLevel, 1)
		}),
		equal(host64(id)...),
	}
}

// InstallGateway puts the rules into force in ns, as Install does, and then lifts what Hold or Install of ModeGateway put
// there. There is no moment without rules. The namespace's routes come from RouteNames.
func InstallGateway(ns *os.File, g GatewayRules) error {
	nft, err := dialIn(ns, unix.NETLINK_NETFILTER)
	if err == nil {
		defer nft.Close()
		err = g.install(nft)
	}
	if err != nil {
		return fmt.Errorf("install rules of the gateway: %w", err)
	}
	return nil
}

// install tries it as it is at a container's start, all in one transaction, and then without what the namespace or the kernel
// has not: a hold, limits or logs. A transaction that fails has changed nothing.
func (g GatewayRules) install(nft *conn) error {
	try := func(lifts bool) error {
		t := planGateway(g)
		t.lifts = lifts
		packet, steps := t.encode()
		return nft.transact(packet, func() []string { return steps })
	}
	for {
		err := try(true)
		if errors.Is(err, unix.ENOENT) {
			err = try(false)
		}
		if !g.TellRefused || !lacks(err) {
			return err
		}
		g.TellRefused = false
	}
}

// HasGateway reports whether rules of a gateway with this tag are in ns already. The error is ErrOtherGateway if there
// are some of another.
func HasGateway(ns *os.File, tag string) (bool, error) {
	nft, err := dialIn(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return false, fmt.Errorf("look for a gateway: %w", err)
	}
	defer nft.Close()
	names, err := dump(nft, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, []byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, chainName)
	if err != nil {
		return false, fmt.Errorf("look for a gateway: %w", err)
	}
	for _, name := range names {
		if other, ok := strings.CutPrefix(name, gatewayChain); ok {
			if other != tag {
				return false, ErrOtherGateway
			}
			return true, nil
		}
	}
	return false, nil
}

// chainName appends the name of a chain of our table.
func chainName(body []byte, out []string) []string {
	if len(body) < nfGenLen {
		return out
	}
	ours, name := false, ""
	eachAttr(body[nfGenLen:], func(typ uint16, data []byte) {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			ours = unix.ByteSliceToString(data) == tableName
		case unix.NFTA_CHAIN_NAME:
			name = unix.ByteSliceToString(data)
		}
	})
	if ours {
		out = append(out, name)
	}
	return out
}
