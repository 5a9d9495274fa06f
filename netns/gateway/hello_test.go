package gateway

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// clientHello returns what crypto/tls sends first.
func clientHello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer b.Close()
	go tls.Client(a, config).Handshake() //nolint:errcheck // nobody answers
	b.SetReadDeadline(time.Now().Add(5 * time.Second))
	buf := make([]byte, 8192)
	n, err := b.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := parseHello(buf[:n]); !errors.Is(err, errShort) {
			return buf[:n]
		}
		m, err := b.Read(buf[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
}

// split cuts the handshake of one record into records of size bytes.
func split(hello []byte, size int) []byte {
	var out []byte
	for body := hello[5:]; len(body) > 0; {
		n := min(size, len(body))
		out = append(out, hello[0], hello[1], hello[2], byte(n>>8), byte(n))
		out = append(out, body[:n]...)
		body = body[n:]
	}
	return out
}

func TestParseHello(t *testing.T) {
	whole := clientHello(t, &tls.Config{ServerName: "example.com"})
	for name, data := range map[string][]byte{"one record": whole, "records of 7 bytes": split(whole, 7), "records of 1 byte": split(whole, 1), "and more": append(slices.Clip(whole), 1, 2, 3)} {
		h, err := parseHello(data)
		if err != nil || h.serverName != "example.com" || h.encrypted {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	for n := range whole {
		if h, err := parseHello(whole[:n]); !errors.Is(err, errShort) {
			t.Fatalf("%d bytes: %+v, %v", n, h, err)
		}
	}
	if h, err := parseHello(clientHello(t, &tls.Config{InsecureSkipVerify: true})); err != nil || h.serverName != "" {
		t.Errorf("without a name: %+v, %v", h, err)
	}
	ssl2 := append([]byte{0x80, 0x2e, 1, 3, 1}, make([]byte, 64)...)
	giant := []byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}
	for name, data := range map[string][]byte{"SSL 2": ssl2, "giant": giant, "HTTP": []byte("GET / HTTP/1.1\r\n\r\n"), "alert": {21, 3, 1, 0, 2, 2, 40}, "empty record": {22, 3, 1, 0, 0}} {
		if h, err := parseHello(data); err == nil || errors.Is(err, errShort) {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
}

// A second name, in a second extension or a second entry, would let two readers see two names.
func TestParseHello_TwoNames(t *testing.T) {
	entry := func(name string) []byte {
		return append([]byte{0, byte(len(name) >> 8), byte(len(name))}, name...)
	}
	vector := func(b []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...) }
	extension := func(list []byte) []byte { return append([]byte{0, 0}, vector(vector(list))...) }
	hello := func(extensions []byte) []byte {
		body := append([]byte{3, 3}, make([]byte, 33)...)
		body = append(append(body, 0, 2, 0x13, 1, 1, 0), vector(extensions)...)
		return append([]byte{22, 3, 1, byte((len(body) + 4) >> 8), byte(len(body) + 4), 1, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	}
	if h, err := parseHello(hello(extension(entry("a.test")))); err != nil || h.serverName != "a.test" {
		t.Fatalf("%+v, %v", h, err)
	}
	for _, e := range [][]byte{
		append(extension(entry("a.test")), extension(entry("b.test"))...), extension(append(entry("a.test"), entry("b.test")...)), extension(nil),
	} {
		if h, err := parseHello(hello(e)); err == nil {
			t.Errorf("%x: %+v", e, h)
		}
	}
	if h, err := parseHello(hello(append([]byte{0xfe, 0x0d, 0, 1, 0}, extension(entry("a.test"))...))); err != nil || !h.encrypted {
		t.Errorf("encrypted hello: %+v, %v", h, err)
	}
}

func TestSniff(t *testing.T) {
	for in, want := range map[string]egress.Protocol{
		"": "", "G": "", "GET": "", "GET ": egress.HTTP, "M-SEARCH *": egress.HTTP, "PRI * HTTP/2.0": egress.HTTP, "get /": egress.Raw, "SSH": "", "SSH-2.0-x": egress.SSH,
		"\x16\x03": "", "\x16\x03\x01": egress.TLS, "\x16\x02\x01": egress.Raw, "\x00": egress.Raw, "AB /": egress.Raw, strings.Repeat("A", 30): egress.Raw, "SET x": egress.HTTP,
	} {
		if got := sniff([]byte(in)); got != want {
			t.Errorf("sniff(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestWholeRecords(t *testing.T) {
	whole := clientHello(t, &tls.Config{ServerName: "example.com"})
	in := split(whole, 7)
	at := 0
	for n := range len(in) + 1 {
		next := wholeRecords(in[:n], at)
		if next < at || next > n || n == len(in) && next != n || wholeRecords(in[:n], 0) != next {
			t.Fatalf("%d bytes: %d, then %d", n, at, next)
		}
		at = next
	}
	for name, bad := range map[string][]byte{"another type": {23, 3, 3, 0, 5, 1}, "empty": {22, 3, 3, 0, 0}, "too large": {22, 3, 3, 0xff, 0, 1}} {
		if got := wholeRecords(bad, 0); got != len(bad) {
			t.Errorf("%s: %d", name, got)
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add(clientHello(f, &tls.Config{ServerName: "example.com"}))
	f.Add([]byte{22, 3, 1, 0, 5, 1, 0, 0, 1, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := parseHello(data)
		if err == nil {
			// More bytes behind a whole hello don't change it.
			again, err := parseHello(append(bytes.Clone(data), 0, 1, 2))
			if err != nil || again != h {
				t.Errorf("%+v, then %+v, %v", h, again, err)
			}
			if sniff(data) != egress.TLS {
				t.Errorf("a hello that is no TLS: %q", sniff(data))
			}
		}
	})
}
