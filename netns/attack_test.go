package netns

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// installWithout installs deliberately broken rules: ModeEngine without the
// rules that start with this text. Attacks must succeed against them.
func (s *space) installWithout(text string) *Rules {
	s.tb.Helper()
	p := Policy{Mode: ModeEngine}
	table := planTable(p)
	removed := false
	for i := range table.chains {
		var kept []rule
		for _, r := range table.chains[i].rules {
			if strings.HasPrefix(r.text, text) {
				removed = true
				continue
			}
			kept = append(kept, r)
		}
		table.chains[i].rules = kept
	}
	if !removed {
		s.tb.Fatalf("no rule starts with %q", text)
	}
	packet, _ := table.encode()
	r := &Rules{policy: p, packet: packet}
	must(s.tb, r.Install(s.ns))
	return r
}

// An unprivileged task sends itself a datagram from the metadata service's
// address, as IPV6_FREEBIND lets it, so that conntrack has an "inbound"
// connection to reply to. metadata6 stands before replies, so the test uses
// another private address.
func forgeInbound(task *space, victim netip.AddrPort) (forged, reply error) {
	own := netip.MustParseAddrPort("[fd30::2]:4444")
	mine := task.socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
	must(task.tb, unix.Bind(mine, sockaddr(own)))
	forger := task.socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
	must(task.tb, unix.SetsockoptInt(forger, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1))
	must(task.tb, unix.Bind(forger, sockaddr(victim)))
	forged = unix.Sendto(forger, []byte("forged"), 0, sockaddr(own))
	tv := unix.NsecToTimeval(int64(patience()))
	must(task.tb, unix.SetsockoptTimeval(mine, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	buf := make([]byte, 64)
	if forged == nil {
		if _, _, err := unix.Recvfrom(mine, buf, 0); err != nil {
			return err, err
		}
	}
	must(task.tb, unix.Connect(mine, sockaddr(victim)))
	if _, err := unix.Write(mine, []byte("?")); err != nil {
		return forged, err
	}
	_, err := unix.Read(mine, buf)
	return forged, err
}

func TestAttack_ForgedInboundConnection(t *testing.T) {
	if !isolated(t) {
		return
	}
	victim := netip.MustParseAddrPort("[fd99::9]:80")
	b := newBridged(t)
	b.populate("fd99::9")
	b.task.finalize(b.task.installWithout("fib saddr type != local"))
	if forged, reply := forgeInbound(b.task, victim); forged != nil || reply != nil {
		t.Errorf("without the source check: forging %v, reply %v; the attack should work", forged, reply)
	}

	b = newBridged(t)
	b.populate("fd99::9")
	b.task.finalize(b.task.install(Policy{Mode: ModeEngine}))
	if forged, reply := forgeInbound(b.task, victim); !errors.Is(forged, unix.EPERM) || !errors.Is(reply, unix.EPERM) {
		t.Errorf("forging %v, reply %v, want EPERM twice", forged, reply)
	}
}

// The real destination of a source-routed packet is in an option.
func TestAttack_SourceRoute(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	b.populate("93.184.216.34", "2606:2800::9")
	b.world.run("sysctl -q -w net.ipv4.conf.all.accept_source_route=1 net.ipv4.conf.w0.accept_source_route=1")
	send4 := func() error {
		fd := b.task.socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		// loose source route by way of the public address to metadata
		lsrr := string([]byte{131, 11, 4, 93, 184, 216, 34, 169, 254, 169, 254, 0})
		must(t, unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, lsrr))
		return unix.Sendto(fd, []byte("?"), 0, sockaddr(netip.MustParseAddrPort("93.184.216.34:80")))
	}
	send6 := func() error {
		fd := b.task.socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
		// segment routing header with two segments, the last one first
		srh := []byte{0, 4, 4, 1, 1, 0, 0, 0}
		for _, a := range addrs("fd00:ec2::254", "2606:2800::9") {
			srh = append(srh, a.AsSlice()...)
		}
		must(t, unix.SetsockoptString(fd, unix.IPPROTO_IPV6, unix.IPV6_RTHDR, string(srh)))
		return unix.Sendto(fd, []byte("?"), 0, sockaddr(netip.MustParseAddrPort("[2606:2800::9]:80")))
	}
	attacks := map[string]func() error{"ip hdrlength": send4, "exthdr rt": send6}
	for rule, send := range attacks {
		b.task.finalize(b.task.installWithout(rule))
		if err := send(); err != nil {
			t.Errorf("without rule %q: %v; the packet should leave", rule, err)
		}
	}
	b.task.finalize(b.task.install(Policy{Mode: ModeEngine}))
	for rule, send := range attacks {
		if err := send(); !errors.Is(err, unix.EPERM) {
			t.Errorf("rule %q: %v, want EPERM", rule, err)
		}
	}
}

// Broadcast and multicast reach the host's services without naming it.
func TestAttack_BroadcastAndMulticast(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	var eth0 *net.Interface
	b.task.do(func() (err error) {
		eth0, err = net.InterfaceByName("eth0")
		return err
	})
	send := func(to string) error {
		ap := netip.MustParseAddrPort(to)
		fd := b.task.socket(family(ap.Addr()), unix.SOCK_DGRAM, 0)
		must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
		if ap.Addr().Is6() {
			must(t, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, eth0.Index))
		}
		return unix.Sendto(fd, []byte("?"), 0, sockaddr(ap))
	}
	targets := []string{"172.30.0.255:53", "172.30.0.0:53", "255.255.255.255:67", "224.0.0.251:5353", "239.255.255.250:1900", "[ff02::fb]:5353", "[ff02::1]:53"}
	for _, to := range targets {
		if err := send(to); err != nil {
			t.Errorf("without rules, %s: %v", to, err)
		}
	}
	b.task.finalize(b.task.install(Policy{Mode: ModeEngine}))
	for _, to := range targets {
		if err := send(to); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v, want EPERM", to, err)
		}
	}
}

// Rules hold for every protocol, not only for those with ports.
func TestAttack_OtherProtocols(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	b.populate("10.9.9.9", "93.184.216.34")
	// Raw sockets stand for any protocol; a task has no CAP_NET_RAW.
	send := func(proto int, to string) error {
		fd := b.task.socket(unix.AF_INET, unix.SOCK_RAW, proto)
		packet := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0, 0, 53, 0, 53, 0, 0, 0, 0}
		return unix.Sendto(fd, packet, 0, sockaddr(netip.AddrPortFrom(netip.MustParseAddr(to), 0)))
	}
	b.task.finalize(b.task.install(Policy{Mode: ModeEngine}))
	for _, proto := range []int{unix.IPPROTO_ICMP, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_UDPLITE, unix.IPPROTO_GRE, unix.IPPROTO_IPIP, unix.IPPROTO_ESP, 253} {
		for _, to := range []string{"10.9.9.9", "169.254.169.254", gateway4} {
			if err := send(proto, to); !errors.Is(err, unix.EPERM) {
				t.Errorf("protocol %d to %s: %v, want EPERM", proto, to, err)
			}
		}
		if err := send(proto, "93.184.216.34"); err != nil {
			t.Errorf("protocol %d to a public address: %v", proto, err)
		}
	}
}

// A source bound to a device or an interface address changes nothing.
func TestAttack_BindToDevice(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	b.populate("169.254.169.254", "10.9.9.9")
	b.task.finalize(b.task.install(Policy{Mode: ModeEngine}))
	for _, device := range []string{"eth0", "lo"} {
		for _, to := range []string{"169.254.169.254:80", "10.9.9.9:80", "127.0.0.1:80"} {
			fd := b.task.socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			must(t, unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, device))
			err := unix.Sendto(fd, []byte("?"), 0, sockaddr(netip.MustParseAddrPort(to)))
			if err == nil && to != "127.0.0.1:80" {
				t.Errorf("%s by way of %s: sent", to, device)
			}
		}
	}
}

// A container with ip_forward is no router.
func TestAttack_Forward(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	inside := newSpace(t)
	b.task.attach("in0", inside, "eth0")
	b.task.run("ip link set in0 up\nip addr add 192.168.60.1/24 dev in0\nsysctl -q -w net.ipv4.ip_forward=1")
	inside.run("ip link set eth0 up\nip addr add 192.168.60.2/24 dev eth0\nip route add default via 192.168.60.1")
	b.world.run("ip route add 192.168.60.0/24 via 172.30.0.2")
	b.populate("169.254.169.254")
	inside.reaches("tcp", "169.254.169.254:80")
	b.task.finalize(b.task.install(Policy{Mode: ModeEngine}))
	if errno, _ := inside.call("tcp", "169.254.169.254:80"); errno == answered {
		t.Error("metadata is reachable through the container")
	}
}

// While rules are replaced over and over, no datagram gets out, and what is
// allowed stays allowed: Finalize's sets survive. Before Linux 6.17 a lookup
// in a set that meets the end of a transaction may find nothing ("restart set
// lookup on base_seq change"), so there a few allowed ones may be lost.
func TestReplaceIsAtomic(t *testing.T) {
	if !isolated(t) {
		return
	}
	for _, mode := range []Mode{ModeEngine, ModeNone} {
		b := newBridged(t)
		b.populate("10.9.9.9")
		rules := b.task.install(Policy{Mode: mode})
		b.task.finalize(rules)
		var stop atomic.Bool
		finished := make(chan int)
		refused := b.task.socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		allowed := b.task.socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		go func() {
			sent, lost := 0, 0
			for !stop.Load() {
				if err := unix.Sendto(refused, []byte("?"), 0, sockaddr(netip.MustParseAddrPort("10.9.9.9:80"))); !errors.Is(err, unix.EPERM) {
					t.Errorf("mode %s: sendto answered %v while rules were replaced", mode, err)
				}
				err := unix.Sendto(allowed, []byte("?"), 0, sockaddr(netip.MustParseAddrPort("172.30.0.77:80")))
				if mode == ModeEngine && err != nil {
					lost++
				}
				sent++
			}
			if most := sent / 1000; lost > most || lost > 0 && kernelAtLeast(t, 6, 17) {
				t.Errorf("peer refused %d times of %d while rules were replaced", lost, sent)
			}
			finished <- sent
		}()
		deadline, replaced := time.Now().Add(300*time.Millisecond), 0
		for ; time.Now().Before(deadline) || replaced < 100; replaced++ {
			must(t, rules.Install(b.task.ns))
			if replaced%4 == 0 {
				b.task.finalize(rules)
			}
		}
		stop.Store(true)
		sent := <-finished
		t.Logf("mode %s: %d attempts, %d replacements", mode, sent, replaced)
		if sent < 100 {
			t.Errorf("mode %s: only %d attempts", mode, sent)
		}
	}
}

// Docker's resolver: 127.0.0.11:53 leads to ports that dockerd listens on
// inside the namespace, by DNAT in nat OUTPUT and back by SNAT.
func TestDockerDNS(t *testing.T) {
	if !isolated(t) {
		return
	}
	for _, iptables := range []string{"iptables-legacy", "iptables-nft"} {
		for _, dockerFirst := range []bool{true, false} {
			b := newBridged(t)
			docker := func() {
				b.task.serve("127.0.0.11:40053")
				b.task.run(strings.ReplaceAll(`
					IPT -t nat -N DOCKER_OUTPUT
					IPT -t nat -N DOCKER_POSTROUTING
					IPT -t nat -A OUTPUT -d 127.0.0.11 -j DOCKER_OUTPUT
					IPT -t nat -A POSTROUTING -d 127.0.0.11 -j DOCKER_POSTROUTING
					IPT -t nat -A DOCKER_OUTPUT -d 127.0.0.11 -p udp --dport 53 -j DNAT --to-destination 127.0.0.11:40053
					IPT -t nat -A DOCKER_OUTPUT -d 127.0.0.11 -p tcp --dport 53 -j DNAT --to-destination 127.0.0.11:40053
					IPT -t nat -A DOCKER_POSTROUTING -s 127.0.0.11 -p udp --sport 40053 -j SNAT --to-source :53
					IPT -t nat -A DOCKER_POSTROUTING -s 127.0.0.11 -p tcp --sport 40053 -j SNAT --to-source :53`,
					"IPT", iptables))
				for _, network := range []string{"udp", "tcp"} {
					b.task.reaches(network, "127.0.0.11:53")
				}
			}
			if dockerFirst {
				docker()
			}
			rules := b.task.install(Policy{Mode: ModeEngine})
			b.task.finalize(rules, "127.0.0.11", "10.9.9.53")
			if !dockerFirst {
				docker()
			}
			for _, network := range []string{"udp", "tcp"} {
				b.task.reaches(network, "127.0.0.11:53")
			}
			// DNAT to somewhere else is judged by where it leads.
			b.populate("10.9.9.9", "10.9.9.53")
			b.task.run(iptables + " -t nat -A OUTPUT -p tcp -d 93.184.216.34 -j DNAT --to-destination 10.9.9.9:80")
			b.task.refused("tcp", unix.ECONNREFUSED, "93.184.216.34:80")
			// dockerd asks the host's name server from in here
			b.task.reaches("udp", "10.9.9.53:53")
			if t.Failed() {
				t.Fatalf("%s, docker first: %v", iptables, dockerFirst)
			}
		}
	}
}

func TestEachAttrStopsAtNonsense(t *testing.T) {
	ne := binary.NativeEndian
	attr := func(length, typ uint16, data ...byte) []byte {
		return append(ne.AppendUint16(ne.AppendUint16(nil, length), typ), data...)
	}
	for name, b := range map[string][]byte{
		"short":     {1, 2, 3},
		"zero":      attr(0, 1, 9, 9, 9, 9),
		"too long":  attr(9, 1, 1, 2, 3, 4),
		"one short": attr(8, 1, 1, 2, 3),
	} {
		eachAttr(b, func(uint16, []byte) { t.Errorf("%s: visited", name) })
	}
	n := 0
	eachAttr(append(attr(5, 1, 7, 0, 0, 0), attr(6, 2, 8, 9)...), func(uint16, []byte) { n++ })
	if n != 2 {
		t.Errorf("visited %d attributes, want 2", n)
	}
}
