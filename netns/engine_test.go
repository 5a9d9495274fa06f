package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// bridged is a task on a bridge network as engines make it: 172.30.0.0/24 and
// fd30::/64, whose gateway is the host, with a peer, and behind the gateway
// a world that answers at every address that matters.
type bridged struct {
	task, world *space
}

var (
	worldMetadata = []string{
		"169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.169.252", "169.254.42.42", "169.254.0.23",
		"100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254",
		"64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110",
	}
	worldPrivate = []string{
		"10.9.9.9", "172.16.5.5", "192.168.9.9", "100.64.1.1", "198.18.0.1", "203.0.113.9", "192.88.99.1",
		"fd99::9", "fec0::9", "2001:db8::9", "2002:a09:909::1", "2001:0:1::1", "64:ff9b::a09:909", "64:ff9b:1::9", "100::9",
	}
	worldPublic = []string{"93.184.216.34", "2606:2800::9", "64:ff9b::5db8:d822", "2a00::9"}
)

const (
	gateway4, gateway6 = "172.30.0.1", "fd30::1"
	peer4, peer6       = "172.30.0.77", "fd30::77"
)

func endpoints(port int, addrs ...string) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(netip.MustParseAddr(a), uint16(port)).String())
	}
	return out
}

func (b *bridged) link() {
	b.task.attach("eth0", b.world, "w0")
	b.task.run(`
		ip link set lo up
		ip link set eth0 up
		ip addr add 172.30.0.2/24 dev eth0
		ip addr add fd30::2/64 dev eth0 nodad`)
	b.world.run(`
		ip link set lo up
		ip link set w0 up
		ip addr add 172.30.0.1/24 dev w0
		ip addr add 172.30.0.77/24 dev w0
		ip addr add fd30::1/64 dev w0 nodad
		ip addr add fd30::77/64 dev w0 nodad`)
	b.task.run(`
		ip route add default via 172.30.0.1
		ip -6 route add default via fd30::1`)
}

// populate gives the world its addresses and servers, on ports 80 and 53.
func (b *bridged) populate(addrs ...string) {
	var lines strings.Builder
	for _, a := range addrs {
		fmt.Fprintf(&lines, "ip addr add %s dev lo%s\n", a, map[bool]string{true: " nodad"}[strings.Contains(a, ":")])
	}
	b.world.run(lines.String())
	for _, e := range append(endpoints(80, addrs...), endpoints(53, addrs...)...) {
		b.world.serve(e)
	}
}

func (b *bridged) serveHosts() {
	for _, port := range []int{53, 80} {
		for _, e := range endpoints(port, gateway4, gateway6, peer4, peer6) {
			b.world.serve(e)
		}
	}
}

func newBridged(t *testing.T) *bridged {
	t.Helper()
	b := &bridged{newSpace(t), newSpace(t)}
	for _, s := range []*space{b.task, b.world} { // a second faster
		s.run("sysctl -q -w net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0")
	}
	b.link()
	b.serveHosts()
	return b
}

// Each address answers without rules, so that a refusal afterwards is ours.
func TestEngineRefusesPrivateAndMetadata(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	private, public := endpoints(80, worldPrivate...), endpoints(80, worldPublic...)
	metadata := endpoints(80, worldMetadata...)
	hosts, peers := endpoints(80, gateway4, gateway6), endpoints(80, peer4, peer6)
	b.populate(append(append(append([]string{}, worldPrivate...), worldPublic...), worldMetadata...)...)
	for _, network := range []string{"tcp", "udp"} {
		for _, list := range [][]string{private, metadata, public, hosts, peers} {
			b.task.reaches(network, list...)
		}
	}

	rules := b.task.install(Policy{Mode: ModeEngine})
	b.task.refused("tcp", unix.ECONNREFUSED, peers...) // until Finalize finds them
	b.task.finalize(rules)
	for network, errno := range map[string]unix.Errno{"tcp": unix.ECONNREFUSED, "udp": unix.EPERM} {
		b.task.refused(network, errno, private...)
		b.task.refused(network, errno, metadata...)
		b.task.refused(network, errno, hosts...)
		b.task.refused(network, errno, "[fd30::]:80", "[fd30::]:53") // any router on the link
		b.task.reaches(network, public...)
		b.task.reaches(network, peers...)
		b.task.reaches(network, endpoints(53, gateway4, gateway6)...)
		// not a name server that anybody named
		b.task.refused(network, errno, endpoints(53, "10.9.9.9", "169.254.169.254", "168.63.129.16", "fd99::9")...)
	}
}

// A held namespace refuses what is attached to it until Settle, and then is as if the rules had been there all along.
func TestHoldUntilSettle(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := &bridged{newSpace(t), newSpace(t)}
	rules, err := PlanRules(Policy{Mode: ModeEngine})
	must(t, err)
	must(t, rules.Hold(b.task.ns))
	must(t, LoopbackUp(b.task.ns))
	must(t, rules.Settle(b.task.ns, nil)) // no link yet: stays held
	b.link()
	b.task.run("ip addr add fd30::3/64 dev eth0")
	b.serveHosts()
	b.populate("93.184.216.34", "10.9.9.9", "2606:2800::9", "fd99::9")
	public, private := endpoints(80, "93.184.216.34", "2606:2800::9"), endpoints(80, "10.9.9.9", "fd99::9")
	b.task.refused("tcp", unix.ECONNREFUSED, public...)
	b.task.refused("tcp", unix.ECONNREFUSED, endpoints(80, peer4, peer6)...)
	for range 2 { // again when a network is connected later
		must(t, rules.Settle(b.task.ns, nil))
		b.task.reaches("tcp", public...)
		b.task.reaches("tcp", endpoints(80, peer4, peer6)...)
		b.task.refused("tcp", unix.ECONNREFUSED, private...)
	}
	eventually(t, "duplicate address detection to pass", func() bool {
		return !strings.Contains(b.task.run("ip -6 addr show dev eth0"), "tentative")
	})
}

// Rules installed before any link exists hold for links that come later, and
// IPv6 comes up under them: nodad isn't used here.
func TestInstallBeforeLinks(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := &bridged{newSpace(t), newSpace(t)}
	rules := b.task.install(Policy{Mode: ModeEngine})
	b.task.finalize(rules)
	must(t, LoopbackUp(b.task.ns))
	b.link()
	b.task.run("ip addr add fd30::3/64 dev eth0")
	b.serveHosts()
	b.populate("93.184.216.34", "10.9.9.9", "2606:2800::9", "fd99::9")
	public, private := endpoints(80, "93.184.216.34", "2606:2800::9"), endpoints(80, "10.9.9.9", "fd99::9")
	b.task.reaches("tcp", public...)
	b.task.refused("tcp", unix.ECONNREFUSED, private...)
	b.task.refused("tcp", unix.ECONNREFUSED, endpoints(80, peer4, peer6)...)
	b.task.finalize(rules)
	b.task.reaches("tcp", endpoints(80, peer4, peer6)...)
	b.task.refused("tcp", unix.ECONNREFUSED, private...)
	eventually(t, "duplicate address detection to pass", func() bool {
		return !strings.Contains(b.task.run("ip -6 addr show dev eth0"), "tentative")
	})
	if out := b.task.run("ip -6 addr show dev eth0"); strings.Contains(out, "dadfailed") {
		t.Errorf("address failed: %s", out)
	}
}

func TestLoopbackUp(t *testing.T) {
	if !isolated(t) {
		return
	}
	s := newSpace(t)
	for range 2 {
		must(t, LoopbackUp(s.ns))
	}
	s.serve("127.0.0.1:80")
	s.serve("[::1]:80")
	for _, mode := range []Mode{ModeOpen, ModeNone, ModeEngine} {
		s.install(Policy{Mode: mode})
		for _, network := range []string{"tcp", "udp"} {
			s.reaches(network, "127.0.0.1:80", "[::1]:80")
		}
		s.refused("tcp", unix.ECONNREFUSED, "127.0.0.1:81", "[::1]:81")
		s.refused("udp", unix.ECONNREFUSED, "127.0.0.1:81", "[::1]:81")
	}
}

func TestNoneReachesLoopbackAlone(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	b.populate("93.184.216.34", "10.9.9.9", "2606:2800::9")
	targets := append(endpoints(80, "93.184.216.34", "10.9.9.9", "2606:2800::9", peer4, peer6, gateway4), endpoints(53, gateway4, gateway6)...)
	b.task.reaches("tcp", targets...)
	rules := b.task.install(Policy{})
	b.task.finalize(rules, gateway4)
	b.task.serve("172.30.0.2:80")
	b.task.refused("tcp", unix.ECONNREFUSED, targets...)
	b.task.refused("udp", unix.EPERM, targets...)
	b.task.reaches("tcp", "172.30.0.2:80")
	if errno, _ := b.world.call("tcp", "172.30.0.2:80"); errno == answered {
		t.Error("mode none answered a connection from outside")
	}
}

// Published ports: connections from outside are answered, from private
// addresses too, and the task can't use them to go there itself.
func TestInboundIsAnswered(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	b.populate("10.9.9.9", "93.184.216.34", "fd99::9", "168.63.129.16")
	b.task.serve("172.30.0.2:8080")
	b.task.serve("[fd30::2]:8080")
	inbound := func() {
		for _, from := range []string{"10.9.9.9", "172.30.0.1", "172.30.0.77", "93.184.216.34", "168.63.129.16"} {
			b.world.run("ip route replace 172.30.0.2 dev w0 src " + from)
			for _, network := range []string{"tcp", "udp"} {
				b.world.reaches(network, "172.30.0.2:8080")
				// a closed port is reset, an unreachable error gets out
				b.world.refused(network, unix.ECONNREFUSED, "172.30.0.2:8081")
			}
		}
		for _, from := range []string{"fd99::9", "fd30::1"} {
			b.world.run("ip -6 route replace fd30::2 dev w0 src " + from)
			for _, network := range []string{"tcp", "udp"} {
				b.world.reaches(network, "[fd30::2]:8080")
				b.world.refused(network, unix.ECONNREFUSED, "[fd30::2]:8081")
			}
		}
	}
	inbound()
	if t.Failed() {
		t.Fatal("without rules")
	}
	b.task.finalize(b.task.install(Policy{Mode: ModeEngine}))
	inbound()
	b.task.refused("tcp", unix.ECONNREFUSED, "10.9.9.9:80", "[fd99::9]:80", "168.63.129.16:80")
	b.task.refused("udp", unix.EPERM, "10.9.9.9:80", "[fd99::9]:80", "168.63.129.16:80")
}

func TestNameserversOnPort53(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	resolvers := []string{"10.9.9.53", "fd99::53", "169.254.169.254", "168.63.129.16", "fd20:ce::254"}
	never := []string{"169.254.170.2", "fd00:ec2::254", "100.100.100.200"}
	b.populate(append(append([]string{}, resolvers...), never...)...)
	rules := b.task.install(Policy{Mode: ModeEngine})
	b.task.finalize(rules, append(append([]string{"127.0.0.11", "::ffff:10.9.9.53"}, resolvers...), never...)...)
	for network, errno := range map[string]unix.Errno{"tcp": unix.ECONNREFUSED, "udp": unix.EPERM} {
		b.task.reaches(network, endpoints(53, resolvers...)...)
		b.task.refused(network, errno, endpoints(80, resolvers...)...)
		b.task.refused(network, errno, endpoints(53, never...)...)
		b.task.refused(network, errno, endpoints(80, never...)...)
	}
	b.task.finalize(rules) // another network, no name servers any more
	b.task.refused("udp", unix.EPERM, endpoints(53, resolvers...)...)
}

func TestAllowPrivate(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	b.populate("10.9.9.9", "10.10.0.1", "169.254.169.254", "fd99::9", "fd00:ec2::254", "172.16.5.5")
	b.task.finalize(b.task.install(Policy{
		Mode:         ModeEngine,
		AllowPrivate: prefixes("10.9.0.0/16", "169.254.0.0/16", "fd00::/8", "172.30.0.0/16", "fd30::1/128"),
	}))
	b.task.reaches("tcp", "10.9.9.9:80", "[fd99::9]:80", "[fd30::1]:80")
	b.task.refused("tcp", unix.ECONNREFUSED, "10.10.0.1:80", "172.16.5.5:80", "169.254.169.254:80", "[fd00:ec2::254]:80", "172.30.0.1:80")
}

// Policies that share a namespace add up, in either order.
func TestPoliciesAddUp(t *testing.T) {
	if !isolated(t) {
		return
	}
	wide := Policy{Mode: ModeEngine, AllowPrivate: prefixes("10.0.0.0/8")}
	for name, order := range map[string][]Policy{
		"loose last":  {{Mode: ModeEngine}, wide, {Mode: ModeOpen}},
		"loose first": {wide, {Mode: ModeEngine}},
	} {
		b := newBridged(t)
		b.populate("10.9.9.9", "93.184.216.34")
		for _, p := range order {
			b.task.finalize(b.task.install(p))
		}
		b.task.refused("tcp", unix.ECONNREFUSED, "10.9.9.9:80")
		b.task.reaches("tcp", "93.184.216.34:80", "172.30.0.77:80")
		b.task.install(Policy{Mode: ModeNone})
		b.task.refused("tcp", unix.ECONNREFUSED, "93.184.216.34:80", "172.30.0.77:80")
		if t.Failed() {
			t.Fatalf("order %q", name)
		}
	}
}

// An internal network has no route that names the host.
func TestInternalNetworkHidesHost(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	b.task.run("ip route del default\nip -6 route del default")
	b.task.reaches("tcp", "172.30.0.1:80", "[fd30::1]:80")
	b.task.finalize(b.task.install(Policy{Mode: ModeEngine}))
	b.task.refused("tcp", unix.ECONNREFUSED, "172.30.0.1:80", "[fd30::1]:80")
	b.task.reaches("tcp", "172.30.0.1:53", "[fd30::1]:53", "172.30.0.77:80", "[fd30::77]:80")
}

// The host's own addresses on the bridge are found wherever they are.
func TestHostAddressIsNoPeer(t *testing.T) {
	if !isolated(t) {
		return
	}
	var host *space
	onThread(t, func() error { // the namespace that Finalize runs in
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", os.Getpid()))
		host = &space{t, f}
		return err
	})
	t.Cleanup(func() { host.ns.Close() })
	task := newSpace(t)
	task.attach("eth0", host, "h0")
	task.run("ip link set lo up\nip link set eth0 up\nip addr add 10.7.0.9/24 dev eth0")
	host.run("ip link set h0 up\nip addr add 10.7.0.254/24 dev h0\nip addr add 10.7.0.1/24 dev h0")
	host.serve("10.7.0.254:80")
	host.serve("10.7.0.254:53")
	host.serve("10.7.0.1:80")
	task.reaches("tcp", "10.7.0.254:80", "10.7.0.1:80")
	task.finalize(task.install(Policy{Mode: ModeEngine}))
	task.refused("tcp", unix.ECONNREFUSED, "10.7.0.254:80", "10.7.0.1:80")
	task.reaches("udp", "10.7.0.254:53")
}

// A rootless caller can't return to a network namespace that it doesn't own.
func TestRootless(t *testing.T) {
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	if !reexec(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: root, GidMappings: root}) {
		return
	}
	s := newSpace(t)
	must(t, LoopbackUp(s.ns))
	rules := s.install(Policy{Mode: ModeEngine})
	s.finalize(rules)
	s.serve("127.0.0.1:80")
	s.reaches("tcp", "127.0.0.1:80")
	own, err := os.Readlink("/proc/thread-self/ns/net")
	must(t, err)
	for range 20 {
		s.finalize(rules)
		if now, _ := os.Readlink("/proc/thread-self/ns/net"); now != own {
			t.Fatalf("thread is in %s, was in %s", now, own)
		}
	}
}

// Connections to a link-local address are answered too.
func TestInboundLinkLocal(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	b.task.run("ip addr add fe80::2:2/64 dev eth0 nodad")
	b.world.run("ip addr add fe80::1:1/64 dev w0 nodad")
	inbound := func(from *space, device, addr string) error {
		var link *net.Interface
		from.do(func() (err error) {
			link, err = net.InterfaceByName(device)
			return err
		})
		fd := from.socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
		tv := unix.NsecToTimeval(int64(patience()))
		must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv))
		return unix.Connect(fd, &unix.SockaddrInet6{Port: 8080, Addr: netip.MustParseAddr(addr).As16(), ZoneId: uint32(link.Index)})
	}
	b.task.serve("[::]:8080")
	b.world.serve("[::]:8080")
	must(t, inbound(b.world, "w0", "fe80::2:2"))
	must(t, inbound(b.task, "eth0", "fe80::1:1"))
	b.task.finalize(b.task.install(Policy{Mode: ModeEngine}))
	must(t, inbound(b.world, "w0", "fe80::2:2"))
	if err := inbound(b.task, "eth0", "fe80::1:1"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the host by its link-local address: %v, want ECONNREFUSED", err)
	}
}

func TestNetworkConnectedLater(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := newBridged(t)
	rules := b.task.install(Policy{Mode: ModeEngine})
	b.task.finalize(rules)
	b.task.attach("eth1", b.world, "w1")
	b.task.run("ip link set eth1 up\nip addr add 192.168.80.2/24 dev eth1")
	b.world.run("ip link set w1 up\nip addr add 192.168.80.9/24 dev w1")
	b.world.serve("192.168.80.9:80")
	b.task.refused("tcp", unix.ECONNREFUSED, "192.168.80.9:80")
	b.task.finalize(rules)
	b.task.reaches("tcp", "192.168.80.9:80", "172.30.0.77:80")
	b.task.run("ip link del eth0")
	b.task.finalize(rules)
	b.task.run("ip route add default via 192.168.80.9")
	b.task.refused("tcp", unix.ECONNREFUSED, "172.30.0.77:80")
}

func TestInstallErrors(t *testing.T) {
	if !isolated(t) {
		return
	}
	rules := mustPlan(t, Policy{Mode: ModeEngine})
	own, err := os.Open("/proc/self/ns/net")
	must(t, err)
	defer own.Close()
	for name, err := range map[string]error{
		"install": rules.Install(own), "finalize": rules.Finalize(own, nil), "loopback": LoopbackUp(own),
	} {
		if !errors.Is(err, ErrOwnNamespace) {
			t.Errorf("%s: %v, want %v", name, err, ErrOwnNamespace)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").Output(); err == nil && len(out) > 0 {
		t.Errorf("rules in the caller's namespace:\n%s", out)
	}
	s := newSpace(t)
	if err := rules.Finalize(s.ns, nil); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("finalize without install: %v, want %v", err, ErrNotInstalled)
	}
	file, err := os.Open(os.DevNull)
	must(t, err)
	defer file.Close()
	if err := rules.Install(file); !errors.Is(err, unix.EINVAL) {
		t.Errorf("install into a file: %v, want EINVAL", err)
	}
	pid, err := os.Open("/proc/self/ns/mnt")
	must(t, err)
	defer pid.Close()
	if err := rules.Install(pid); !errors.Is(err, unix.EINVAL) {
		t.Errorf("install into a mount namespace: %v, want EINVAL", err)
	}
	for _, mode := range []Mode{ModeOpen, ModeHost} {
		r := mustPlan(t, Policy{Mode: mode})
		must(t, r.Install(own))
		must(t, r.Finalize(own, nil))
	}
}

func TestProbe(t *testing.T) {
	if !isolated(t) {
		return
	}
	must(t, Probe())
}
