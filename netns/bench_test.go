package netns

import (
	"net/netip"
	"os"
	"testing"
)

func benchSpace(b *testing.B) *space {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("probe euid: network namespaces need root")
	}
	return newSpace(b)
}

// One Install per namespace, as create does it.
func BenchmarkInstall(b *testing.B) {
	rules := mustPlan(b, Policy{Mode: ModeEngine})
	for b.Loop() {
		b.StopTimer()
		s := benchSpace(b)
		b.StartTimer()
		if err := rules.Install(s.ns); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReinstall(b *testing.B) {
	rules := mustPlan(b, Policy{Mode: ModeEngine})
	s := benchSpace(b)
	for b.Loop() {
		if err := rules.Install(s.ns); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFinalize(b *testing.B) {
	for _, links := range []string{"none", "veth"} {
		b.Run(links, func(b *testing.B) {
			s := benchSpace(b)
			if links == "veth" {
				s.run("ip link set lo up\nip link add eth0 type veth peer name peer0\nip link set peer0 up\nip link set eth0 up")
				s.run("ip addr add 172.17.0.2/16 dev eth0\nip route add default via 172.17.0.1")
			}
			rules := s.install(Policy{Mode: ModeEngine})
			for b.Loop() {
				if err := rules.Finalize(s.ns, []netip.Addr{netip.MustParseAddr("10.0.0.53")}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkWithin(b *testing.B) {
	s := benchSpace(b)
	for b.Loop() {
		if err := within(s.ns, func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
