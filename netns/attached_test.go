package netns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// link parses "index local/bits" or "index local peer/bits".
func link(s string) linkAddr {
	var la linkAddr
	words := strings.Fields(s)
	if _, err := fmt.Sscan(words[0], &la.index); err != nil {
		panic(err)
	}
	la.prefix = netip.MustParsePrefix(words[len(words)-1])
	la.local = la.prefix.Addr()
	if len(words) == 3 {
		la.local = netip.MustParseAddr(words[1])
	}
	return la
}

func links(s ...string) []linkAddr {
	out := []linkAddr{link("1 127.0.0.1/8"), link("1 ::1/128")}
	for _, l := range s {
		out = append(out, link(l))
	}
	return out
}

func TestPlanAttached(t *testing.T) {
	for name, tc := range map[string]struct {
		facts       facts
		nameservers []netip.Addr
		want        string
	}{
		"no link": {facts{addrs: links()}, addrs("127.0.0.11", "10.0.0.53"), `
			dns 10.0.0.53`},
		"docker bridge": {facts{addrs: links("2 172.17.0.2/16"), gateways: addrs("172.17.0.1"), hostIPs: addrs("172.17.0.1", "192.0.2.7", "fe80::1")}, addrs("1.1.1.1"), `
			peers 172.17.0.0/16
			refused 172.17.0.0 172.17.0.1 172.17.255.255
			dns 1.1.1.1 172.17.0.1`},
		"docker dual stack, public gateway": {facts{addrs: links("2 172.18.0.2/16", "2 2a00:1::2/64", "2 fe80::42/64"), gateways: addrs("172.18.0.1", "2a00:1::1")}, nil, `
			peers 172.18.0.0/16 2a00:1::/64
			refused 172.18.0.0 172.18.0.1 172.18.255.255 2a00:1:: 2a00:1::1
			dns 172.18.0.1 2a00:1::1`},
		"two networks, one default route": {facts{addrs: links("2 172.18.0.3/16", "3 172.19.0.3/16"), gateways: addrs("172.18.0.254")}, nil, `
			peers 172.18.0.0/15
			refused 172.18.0.0 172.18.0.254 172.18.255.255 172.19.0.0 172.19.0.1 172.19.255.255
			dns 172.18.0.254 172.19.0.1`},
		"internal, the task has the first address": {facts{addrs: links("2 10.5.0.1/24")}, nil, `
			peers 10.5.0.0/24
			refused 10.5.0.0 10.5.0.255
			dns`},
		"internal, host known": {facts{addrs: links("2 10.5.0.9/24"), hostIPs: addrs("10.5.0.200", "10.6.0.1")}, nil, `
			peers 10.5.0.0/24
			refused 10.5.0.0 10.5.0.200 10.5.0.255
			dns 10.5.0.200`},
		"pasta copies the host's network": {facts{addrs: links("2 192.168.1.5/24", "2 2a00:9::5/64"), gateways: addrs("192.168.1.1", "fe80::1"), tuns: []uint32{2}, hostIPs: addrs("192.168.1.5")}, addrs("192.168.1.1"), `
			peers
			refused 192.168.1.1 fe80::1
			dns 192.168.1.1 fe80::1`},
		"slirp4netns": {facts{addrs: links("2 10.0.2.100/24", "2 fd00::1234/64"), gateways: addrs("10.0.2.2", "fd00::2"), tuns: []uint32{2}}, addrs("10.0.2.3", "fd00::3"), `
			peers
			refused 10.0.2.2 fd00::2
			dns 10.0.2.2 10.0.2.3 fd00::2 fd00::3`},
		"calico": {facts{addrs: links("2 10.244.1.7/32", "2 fd00:10::7/128"), gateways: addrs("169.254.1.1", "fe80::ecee:eeff:feee:eeee")}, addrs("10.96.0.10"), `
			peers
			refused 169.254.1.1 fe80::ecee:eeff:feee:eeee
			dns 10.96.0.10 169.254.1.1 fe80::ecee:eeff:feee:eeee`},
		"point to point": {facts{addrs: links("2 10.1.0.2 10.1.0.1/32", "3 10.2.0.0/31", "4 fd05::3/127")}, nil, `
			peers
			refused 10.1.0.1 10.2.0.0 10.2.0.1 fd05::2 fd05::3
			dns 10.1.0.1 10.2.0.0 10.2.0.1 fd05::2 fd05::3`},
		"link-local subnets have no peers": {facts{addrs: links("2 169.254.7.7/16", "2 fe80::7/64")}, nil, `
			peers
			refused
			dns`},
		"resolvers of clouds": {facts{addrs: links()}, addrs("169.254.169.254", "168.63.129.16", "fd20:ce::254", "169.254.169.253", "100.100.2.136"), `
			dns 100.100.2.136 168.63.129.16 169.254.169.253 169.254.169.254 fd20:ce::254`},
		"metadata that is no resolver": {facts{addrs: links("2 100.100.100.9/24"), gateways: addrs("100.100.100.200")}, addrs("100.100.100.200", "fd00:ec2::254", "::ffff:169.254.170.2", "0.0.0.0", "::", "::1", "224.0.0.251"), `
			peers 100.100.100.0/24
			refused 100.100.100.0 100.100.100.200 100.100.100.255
			dns`},
		"zones and mapped addresses": {facts{addrs: links()}, []netip.Addr{netip.MustParseAddr("fe80::53%eth0"), netip.MustParseAddr("::ffff:10.0.0.53"), {}}, `
			dns 10.0.0.53 fe80::53`},
	} {
		t.Run(name, func(t *testing.T) {
			got := planAttached(tc.facts, tc.nameservers)
			var want strings.Builder
			for line := range strings.Lines(tc.want) {
				want.WriteString(strings.TrimSpace(line) + "\n")
			}
			text := "\n" + describe(got)
			if len(tc.facts.addrs) == 2 { // loopback alone: only dns is of interest
				text = "\n" + text[strings.Index(text, "dns"):]
			}
			if diff := cmp.Diff(want.String(), text); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}

func describe(a *attached) string {
	line := func(name string, items ...any) string {
		return strings.TrimSpace(name+" "+strings.Trim(fmt.Sprint(items...), "[]")) + "\n"
	}
	p4, p6 := a.peerRanges()
	h4, h6 := splitFamilies(a.refused())
	d4, d6 := splitFamilies(a.resolvers)
	return line("peers", append(p4, p6...)) + line("refused", append(h4, h6...)) + line("dns", append(d4, d6...))
}

func TestAttachedIsBounded(t *testing.T) {
	var many []netip.Addr
	for a := netip.MustParseAddr("10.0.0.1"); len(many) <= dynamicSizeMax; a = a.Next() {
		many = append(many, a)
	}
	if _, ok := (&attached{hosts: many}).bounded(); ok {
		t.Error("more hosts than the set holds were accepted")
	}
	a, ok := (&attached{resolvers: many}).bounded()
	if !ok || len(a.resolvers) != dynamicSizeMax/2 {
		t.Errorf("bounded resolvers: %d, %v", len(a.resolvers), ok)
	}
}

func TestNameservers(t *testing.T) {
	got := Nameservers("# nameserver 9.9.9.9\nnameserver 10.0.0.1\nnameserver\t fe80::1%eth0 # x\nsearch nameserver 1.1.1.1\nnameserver ::ffff:10.0.0.1\nnameserver\nnameserver 010.0.0.1\nnameservers 8.8.8.8\r\nnameserver 127.0.0.11\r\n")
	if diff := cmp.Diff("[10.0.0.1 fe80::1 127.0.0.11]", fmt.Sprint(got)); diff != "" {
		t.Error(diff)
	}
}

func FuzzNameservers(f *testing.F) {
	f.Add("nameserver 10.0.0.1\n")
	f.Add("nameserver fe80::1%a\r\n\x00nameserver ::\n")
	f.Fuzz(func(t *testing.T, s string) {
		for _, a := range Nameservers(s) {
			if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
				t.Errorf("%q gave %v", s, a)
			}
		}
	})
}
