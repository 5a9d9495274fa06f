package gateway

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// packetTo is the beginning of an IP packet to a port.
func packetTo(proto byte, to netip.Addr, port uint16) []byte {
	b := make([]byte, 40)
	if to.Is4() {
		b = b[:20]
		b[0], b[9] = 0x45, proto
		copy(b[16:], to.AsSlice())
	} else {
		b[0], b[6] = 0x60, proto
		copy(b[24:], to.AsSlice())
	}
	return binary.BigEndian.AppendUint16(append(b, 0xc0, 0x01), port)
}

// told is a message of nfnetlink_log about a packet.
func told(packets ...[]byte) []byte {
	var out []byte
	for _, p := range packets {
		attr := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(p)))
		attr = append(binary.NativeEndian.AppendUint16(attr, nfulaPayload), p...)
		for len(attr)%4 != 0 {
			attr = append(attr, 0)
		}
		body := append([]byte{unix.AF_INET, 0, 0x61, 0x67, 8, 0, 1, 0, 0, 0, 0, 0}, attr...) // another attribute comes first
		m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
		m = binary.NativeEndian.AppendUint16(m, unix.NFNL_SUBSYS_ULOG<<8)
		out = append(append(out, append(m, make([]byte, 10)...)...), body...)
	}
	return out
}

func TestParseRefused(t *testing.T) {
	v4, v6 := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("2606:2800:220::34")
	piece := packetTo(unix.IPPROTO_UDP, v4, 443)
	piece[7] = 8
	got := parseRefused(told(
		packetTo(unix.IPPROTO_UDP, v4, 443), packetTo(unix.IPPROTO_UDP, v6, 8443), packetTo(unix.IPPROTO_ICMP, v4, 7),
		packetTo(47, v4, 7), piece, []byte{0x45, 0}, nil, packetTo(unix.IPPROTO_UDP, v6, 1)[:41],
	))
	want := []refusedPacket{
		{"udp", netip.AddrPortFrom(v4, 443)},
		{"udp", netip.AddrPortFrom(v6, 8443)},
		{"icmp", netip.AddrPortFrom(v4, 0)},
		{"ip-47", netip.AddrPortFrom(v4, 0)},
		{"udp", netip.AddrPortFrom(v4, 0)},
		{"udp", netip.AddrPortFrom(v6, 0)},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// One line for a packet that is sent again, and bounded memory.
func TestRefusedPackets(t *testing.T) {
	g := newTest(t, testConfig("example.com"))
	name4, _, _ := g.names.assign("example.com")
	r := &refusedPackets{g: g, seen: map[refusedPacket]time.Time{}}
	now := time.Now()
	p := refusedPacket{"udp", netip.AddrPortFrom(name4, 443)}
	for range 3 {
		r.add(p, now)
	}
	r.add(p, now.Add(2*refusedAgain))
	refused, _ := g.log.snapshot()
	if len(refused) != 2 || refused[0].Name != "example.com" || refused[0].Port != 443 || refused[0].Code != egress.WrongProtocol || refused[0].Protocol != "udp" {
		t.Errorf("%+v", refused)
	}
	for i := range 10 * refusedAtATime {
		r.add(refusedPacket{"udp", netip.AddrPortFrom(name4, uint16(i))}, now)
	}
	if len(r.seen) > refusedAtATime {
		t.Errorf("%d are kept", len(r.seen))
	}
}

func FuzzRefused(f *testing.F) {
	f.Add(told(packetTo(unix.IPPROTO_UDP, netip.MustParseAddr("93.184.216.34"), 443)))
	f.Add(told(packetTo(unix.IPPROTO_UDP, netip.MustParseAddr("2606:2800:220::34"), 443)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, p := range parseRefused(b) {
			if !p.to.Addr().IsValid() || p.protocol == "" {
				t.Errorf("%v", p)
			}
		}
	})
}
