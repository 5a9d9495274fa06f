package gateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// Bounds of what is said of packets that the rules have refused: a client sends several before it takes the refusal.
const (
	refusedAgain   = 10 * time.Second
	refusedAtATime = 256
)

// refusedPackets logs what the namespace's rules refuse by themselves, as the kernel tells it.
type refusedPackets struct {
	g    *Gateway
	seen map[refusedPacket]time.Time
}

// refusedPacket is where one was going.
type refusedPacket struct {
	protocol string // udp, icmp, icmpv6 or a number
	to       netip.AddrPort
}

// watch reads messages of nfnetlink_log until ctx ends. It closes the socket.
func (r *refusedPackets) watch(ctx context.Context, f *os.File) {
	fd, err := takeFD(f)
	if err != nil || unix.SetNonblock(fd, true) != nil { // whoever made it need not have
		return
	}
	// That there was more is as good as said: a client sends several. Its end is the gateway's.
	hearKernel(ctx, os.NewFile(uintptr(fd), "refused"), func() {}, func(b []byte) { //nolint:errcheck // see above
		for _, p := range parseRefused(b) {
			r.add(p, time.Now())
		}
	})
}

// add logs a packet, unless the same was logged a moment ago.
func (r *refusedPackets) add(p refusedPacket, now time.Time) {
	if last, ok := r.seen[p]; ok && now.Sub(last) < refusedAgain {
		return
	}
	if len(r.seen) >= refusedAtATime {
		clear(r.seen)
	}
	r.seen[p] = now
	name, _ := r.g.names.lookup(p.to.Addr())
	reason := "nothing but TCP leaves, and questions for names"
	if p.protocol == "udp" {
		reason = "UDP does not leave, but for questions for names: QUIC clients go on over TCP"
	}
	e := Event{Event: "packet", Name: name, Address: p.to.Addr().String(), Port: p.to.Port(), Protocol: egress.Protocol(p.protocol)}
	r.g.log.add(e.decided(egress.Decision{Code: egress.WrongProtocol, Reason: reason}))
}

// nfulaPayload is NFULA_PAYLOAD of linux/netfilter/nfnetlink_log.h, nfulnlMsgPacket NFULNL_MSG_PACKET.
const (
	nfulaPayload    = 9
	nfulnlMsgPacket = 0
	nfGenLen        = 4
)

// parseRefused reads the messages of one datagram. The packets in them are the task's.
func parseRefused(b []byte) []refusedPacket {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return nil
	}
	var out []refusedPacket
	for i := range messages {
		m := &messages[i]
		if m.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|nfulnlMsgPacket || len(m.Data) < nfGenLen {
			continue
		}
		for rest := m.Data[nfGenLen:]; len(rest) >= unix.SizeofNlAttr; {
			n := int(binary.NativeEndian.Uint16(rest))
			if n < unix.SizeofNlAttr || n > len(rest) {
				break
			}
			if binary.NativeEndian.Uint16(rest[2:])&^unix.NLA_F_NESTED == nfulaPayload {
				if p, ok := parsePacket(rest[unix.SizeofNlAttr:n]); ok {
					out = append(out, p)
				}
			}
			rest = rest[min((n+3)&^3, len(rest)):]
		}
	}
	return out
}

// parsePacket reads the headers of an IP packet, as far as there are any.
func parsePacket(b []byte) (p refusedPacket, ok bool) {
	const v4Min, v6Len = 20, 40
	var proto byte
	var to netip.Addr
	switch {
	case len(b) >= v4Min && b[0]>>4 == 4:
		size := int(b[0]&0xf) * 4
		if size < v4Min || size > len(b) {
			return p, false
		}
		proto, to = b[9], netip.AddrFrom4([4]byte(b[16:20]))
		if fragment := binary.BigEndian.Uint16(b[6:]) & 0x1fff; fragment != 0 {
			b = nil // a further piece has no ports
		} else {
			b = b[size:]
		}
	case len(b) >= v6Len && b[0]>>4 == 6:
		proto, to, b = b[6], netip.AddrFrom16([16]byte(b[24:40])), b[v6Len:]
	default:
		return p, false
	}
	var port uint16
	switch proto {
	case unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_TCP, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP:
		if len(b) >= 4 {
			port = binary.BigEndian.Uint16(b[2:])
		}
	}
	return refusedPacket{protocolName(proto), netip.AddrPortFrom(to, port)}, true
}

func protocolName(proto byte) string {
	switch proto {
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_ICMPV6:
		return "icmpv6"
	}
	return fmt.Sprintf("ip-%d", proto)
}
