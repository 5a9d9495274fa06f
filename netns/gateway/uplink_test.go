package gateway

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// netlinkMessage is a message of the kernel's with this body.
func netlinkMessage(kind uint16, body ...byte) []byte {
	ne := binary.NativeEndian
	b := ne.AppendUint32(nil, uint32(16+len(body)))
	b = ne.AppendUint16(b, kind)
	return append(append(b, make([]byte, 10)...), body...)
}

func attribute(kind uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	return append(binary.NativeEndian.AppendUint16(b, kind), value...)
}

func TestParseChanges(t *testing.T) {
	address := func(attrs ...[]byte) []byte {
		return append([]byte{unix.AF_INET, 24, 0, 0, 2, 0, 0, 0}, slices.Concat(attrs...)...)
	}
	routeTo := func(bits, table byte) []byte {
		return append([]byte{unix.AF_INET, bits, 0, 0, table}, make([]byte, 7)...)
	}
	local, peer := attribute(unix.IFA_LOCAL, 172, 17, 0, 2), attribute(unix.IFA_ADDRESS, 172, 17, 0, 9)
	linkLocal := attribute(unix.IFA_ADDRESS, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
	gone := change{netip.MustParseAddr("172.17.0.2"), true}
	for name, tc := range map[string]struct {
		packet []byte
		want   []change
	}{
		"an address went":              {netlinkMessage(unix.RTM_DELADDR, address(local)...), []change{gone}},
		"one with a peer":              {netlinkMessage(unix.RTM_DELADDR, address(peer, local)...), []change{gone}},
		"an address of a link":         {netlinkMessage(unix.RTM_DELADDR, address(linkLocal)...), nil},
		"an address came":              {netlinkMessage(unix.RTM_NEWADDR, address(local)...), nil},
		"another way out":              {netlinkMessage(unix.RTM_NEWROUTE, routeTo(0, unix.RT_TABLE_MAIN)...), []change{{moved: true}}},
		"a subnet":                     {netlinkMessage(unix.RTM_NEWROUTE, routeTo(24, unix.RT_TABLE_MAIN)...), nil},
		"names":                        {netlinkMessage(unix.RTM_NEWROUTE, routeTo(0, unix.RT_TABLE_LOCAL)...), nil},
		"two at once":                  {append(netlinkMessage(unix.RTM_DELADDR, address(local)...), netlinkMessage(unix.RTM_DELROUTE, routeTo(0, unix.RT_TABLE_MAIN)...)...), []change{gone, {moved: true}}},
		"cut short":                    {netlinkMessage(unix.RTM_DELADDR, address(local)...)[:20], nil},
		"a route without its head":     {netlinkMessage(unix.RTM_DELROUTE, 2, 0), nil},
		"an address of no family":      {netlinkMessage(unix.RTM_DELADDR, address(attribute(unix.IFA_LOCAL, 1, 2, 3, 4, 5, 6, 7, 8))...), nil},
		"an address that is not there": {netlinkMessage(unix.RTM_DELADDR, address()...), nil},
	} {
		if got := parseChanges(tc.packet); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

// Whoever waits for an answer on a connection whose address has gone hears of it.
func TestOutward_CloseFrom(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var all outward
	kept := all.add(c.(*net.TCPConn))
	read := make(chan error, 1)
	go func() {
		_, err := kept.Read(make([]byte, 1))
		read <- err
	}()
	all.closeFrom(netip.MustParseAddr("127.0.0.2"))
	if len(all.conns) != 1 {
		t.Error("a connection from another address was closed")
	}
	all.closeFrom(netip.MustParseAddr("127.0.0.1"))
	select {
	case err := <-read:
		if err == nil || len(all.conns) != 0 {
			t.Errorf("%v, %d connections", err, len(all.conns))
		}
	case <-time.After(time.Minute):
		t.Error("it waits")
	}
}

// The watch ends with its context, and takes its socket with it.
func TestUplink_Ends(t *testing.T) {
	u, err := openUplink()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- u.watch(ctx, func(change) {}) }()
	cancel()
	select {
	case <-ended: //nolint:errcheck // that it ends is all
	case <-time.After(time.Minute):
		t.Error("it goes on")
	}
}
