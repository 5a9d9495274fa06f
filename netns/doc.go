// Package netns filters what a container may reach, inside the network
// namespace that its engine made for it.
//
// # What it is
//
// A Policy is plain data; PlanRules compiles it without a syscall; String
// prints the result in nft's own syntax, which testdata holds for review.
// (*Rules).Install puts them into a namespace before any link exists, in one
// nftables transaction, so that they hold before the first instruction also
// where the engine attaches its network between create and start.
// (*Rules).Finalize reads links, addresses and routes once they are there and
// tells peers, the host and name servers apart. Data in: a Policy, an open
// handle of a namespace, addresses of name servers. Data out: errors.
//
// In ModeEngine a task reaches, in the order of the rules: nothing from a
// source address that isn't its own; its name servers and gateways on port 53;
// no metadata service; itself; whoever connected to it, to answer; cluster
// ranges of the host's configuration; peers on the subnets that the engine
// attached; public addresses. All else is refused with a TCP reset or an ICMP
// error, so that a task fails at once and doesn't hang: ECONNREFUSED for TCP,
// EPERM for what sends a datagram. Rules go by address, so they hold for every
// protocol. Input isn't filtered (published ports); forwarding is dropped.
//
// # Decisions
//
// Metadata is refused on every port and stands before anything that may be
// allowed. One exemption, DNS: at Google, Oracle and Azure the address is also
// the resolver that resolv.conf names, and without it no container of theirs
// resolves a name. Then port 53 of it is open and nothing else; no metadata
// service answers there. The table in ranges.go has it by address.
//
// Gateways are the host: DNS alone. No route names the host on an internal or
// second network, so Finalize also compares subnets with the addresses of the
// namespace that it runs in, and takes the first address of a subnet for the
// host if it knows no better.
//
// Replies to inbound connections are the reply direction alone, never "what is
// established": otherwise tightening a policy would leave connections open.
// What makes this safe is the rule on source addresses: IPV6_FREEBIND lets an
// unprivileged process send to itself from any address, which conntrack takes
// for an inbound connection (TestAttack_ForgedInboundConnection).
//
// Containers that share a namespace (pods) add up: each policy has its own
// hooked chain, and a packet must pass all of them. A second Install of equal
// rules replaces them within one generation; nothing is deleted, so no packet
// meets a chain without rules. Every chain ends in a rule of its own: the
// kernel sets a chain's policy a moment after the hook is in place. Nothing
// gets out at that moment; before Linux 6.17 a lookup in a set may find
// nothing at the end of a transaction, so that one allowed packet in thousands
// is lost and sent again (seen on 6.1).
//
// NAT64's well-known prefix is judged by the IPv4 address within. 6to4, Teredo
// and every IPv6 address outside 2000::/3 are refused.
//
// # What it refuses to do, and can't
//
// It never touches the caller's own namespace (ErrOwnNamespace); the only
// thing that runs inside another one is socket(2). It makes no links, reads no
// file of the container, and has no gateway by names: that is netns/gateway.
//
// AF_PACKET and AF_XDP sockets and raw tun devices send below the output hook,
// and CAP_NET_ADMIN in the namespace's user namespace removes any rule. So
// these rules hold for tasks without CAP_NET_RAW and CAP_NET_ADMIN, whose
// profile gives neither; another container of a pod that has NET_ADMIN is
// trusted with the pod's network. The host's public addresses are public.
// Socket-level load balancers (Cilium) rewrite before these rules see the
// packet: list the pods' ranges in AllowPrivate, name servers included.
//
// # Kernel
//
// Linux 5.15 with NF_TABLES_INET, NFT_CT, NFT_FIB_INET and NFT_REJECT_INET;
// without one of them Install fails and says at which rule. Nothing is
// downgraded.
//
// # Alternatives rejected
//
// google/nftables and vishvananda/netlink, which DESIGN.md names. Measured on a
// busy two-core machine, minimums: their packages' initialisation takes 0.5 ms
// of each start of agentsafe (this package has none), and a fresh process
// needs 3.7 ms for a smaller transaction than this one, against 0.6 to 1.2 ms.
// What is needed of netlink is a header, an attribute and ten expressions;
// TestListingMatchesText has the nft program vouch for them. The transaction
// of the default policy is a constant: a page fault takes up to 15 us in a
// virtual machine, and building it touches fifteen pages.
//
// A thread of its own per namespace: setns there and back takes 20 us, starting
// a thread more. A drop by interface name or group: there is no interface yet.
// iptables: two tools, two tables, no atomic replacement across families. eBPF
// at the cgroup (connect4, sendmsg4): doesn't see what the kernel itself sends,
// needs a program per cgroup version, and pods share namespaces, not cgroups.
package netns
