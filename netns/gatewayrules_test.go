package netns

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func testGatewayRules() GatewayRules {
	return GatewayRules{Tag: "0123456789abcdef", TCPPort: 4001, DNSPort: 4002, Own: addrs("172.30.0.2", "198.19.255.254", "fd30::2"), TellRefused: true}
}

func gatewayText(g GatewayRules) string {
	var w strings.Builder
	t := planGateway(g)
	w.WriteString("table inet " + tableName + " {\n")
	for i := range t.sets {
		t.sets[i].print(&w)
	}
	for i := range t.chains {
		t.chains[i].print(&w)
	}
	w.WriteString("}\n")
	return w.String()
}

func TestGatewayRulesGolden(t *testing.T) {
	g := testGatewayRules()
	g.CgroupID = 77
	path := filepath.Join("testdata", "gateway.nft")
	got := gatewayText(g)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != got {
		t.Errorf("rules differ from %s (%v):\n%s", path, err, got)
	}
}

// As TestListingMatchesText. The match on a cgroup is listed as a path, so it is left out.
func TestGatewayListingMatchesText(t *testing.T) {
	if !isolated(t) {
		return
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("probe nft: " + err.Error())
	}
	ours, theirs := newSpace(t), newSpace(t)
	for range 2 {
		must(t, InstallGateway(ours.ns, testGatewayRules()))
	}
	theirs.do(func() error {
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(gatewayText(testGatewayRules()))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("nft doesn't load the text: %s", out)
		}
		return nil
	})
	const list = "nft -s list ruleset"
	// Installed chains come after what was there before.
	if got, want := sortedBlocks(ours.run(list)), sortedBlocks(theirs.run(list)); got != want {
		t.Errorf("kernel has\n%s\ntext is\n%s", got, want)
	}
}

// sortedBlocks puts sets and chains in the order of their names.
func sortedBlocks(s string) string {
	blocks := strings.Split(s, "\n\t}\n")
	slices.SortFunc(blocks, func(a, b string) int { return strings.Compare(strings.TrimSpace(a), strings.TrimSpace(b)) })
	return strings.Join(blocks, "\n")
}

// A gateway is found again by its tag, and another one is no stand-in.
func TestHasGateway(t *testing.T) {
	if !isolated(t) {
		return
	}
	s := newSpace(t)
	g := testGatewayRules()
	if has, err := HasGateway(s.ns, g.Tag); has || err != nil {
		t.Errorf("an empty namespace: %v, %v", has, err)
	}
	must(t, InstallGateway(s.ns, g))
	if has, err := HasGateway(s.ns, g.Tag); !has || err != nil {
		t.Errorf("the same tag: %v, %v", has, err)
	}
	if has, err := HasGateway(s.ns, "another"); has || !errors.Is(err, ErrOtherGateway) {
		t.Errorf("another tag: %v, %v", has, err)
	}
}

// What the rules refuse is told to who holds the socket, and to nobody else.
func TestRefusedLog(t *testing.T) {
	if !isolated(t) {
		return
	}
	s := newSpace(t)
	must(t, LoopbackUp(s.ns))
	log, err := OpenRefusedLog(s.ns)
	must(t, err)
	defer log.Close()
	if second, err := OpenRefusedLog(s.ns); err == nil {
		second.Close()
		t.Error("two listen")
	}
	_, err = RouteNames(s.ns, true, true)
	must(t, err)
	must(t, InstallGateway(s.ns, testGatewayRules()))
	to := addrs("93.184.216.34", "2606:2800::9")
	s.refused("udp", unix.EPERM, endpoints(443, to[0].String(), to[1].String())...)
	said := []byte{}
	buf := make([]byte, 4<<10)
	silent := func(a netip.Addr) bool { return !bytes.Contains(said, a.AsSlice()) }
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && slices.ContainsFunc(to, silent); {
		if n, _, err := unix.Recvfrom(int(log.Fd()), buf, unix.MSG_DONTWAIT); err == nil {
			said = append(said, buf[:n]...)
		} else {
			time.Sleep(time.Millisecond)
		}
	}
	for _, a := range to {
		if !bytes.Contains(said, a.AsSlice()) {
			t.Errorf("nothing is said of %s", a)
		}
	}
}

// Without a gateway behind the ports there is no network: connections are refused at once, whatever a task does.
func TestAttack_DeadGateway(t *testing.T) {
	if !isolated(t) {
		return
	}
	b := &bridged{newSpace(t), newSpace(t)}
	must(t, LoopbackUp(b.task.ns))
	must(t, mustPlan(t, Policy{Mode: ModeGateway}).Install(b.task.ns))
	b.link()
	b.serveHosts()
	b.populate("93.184.216.34", "10.9.9.9", "169.254.169.254", "2606:2800::9")
	all := endpoints(80, "93.184.216.34", "10.9.9.9", "169.254.169.254", "2606:2800::9", peer4, gateway4)
	b.task.refused("tcp", unix.ECONNREFUSED, all...)
	sockets, err := OpenGatewaySockets(b.task.ns)
	must(t, err)
	own, linked, err := Addresses(b.task.ns)
	must(t, err)
	if !linked {
		t.Error("the link is not seen")
	}
	lo, err := RouteNames(b.task.ns, false, len(sockets.TCP) > 1)
	must(t, err)
	must(t, InstallGateway(b.task.ns, GatewayRules{Tag: "t", TCPPort: sockets.TCPPort, DNSPort: sockets.DNSPort, Own: append(own, lo...)}))
	sockets.Close()
	b.task.refused("tcp", unix.ECONNREFUSED, append(all, endpoints(80, "198.18.1.1", "fd61:6773:6166:6500::100")...)...)
	b.task.refused("udp", unix.EPERM, endpoints(443, "93.184.216.34", "2606:2800::9", peer4)...)
}
