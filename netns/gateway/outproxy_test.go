package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

func TestOutProxy_Serves(t *testing.T) {
	p, err := newOutProxy(&wire.Proxy{Host: "proxy.test", Port: 3128, Except: []string{"near.test", "*.corp.test", "10.0.0.0/8", "fd00:1::/64"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{
		"far.test": true, "near.test": false, "a.corp.test": false, "corp.test": true, "10.1.2.3": false, "11.1.2.3": true, "93.184.216.34": true,
		"fd00:1::5": false, "2606:2800:220::34": true, "::ffff:10.1.2.3": false,
	} {
		if got := p.serves(host); got != want {
			t.Errorf("%s: %v", host, got)
		}
	}
	if (*outProxy)(nil).serves("far.test") {
		t.Error("no proxy serves")
	}
	for _, bad := range []wire.Proxy{{Port: 1}, {Host: "x"}, {Host: "x", Port: 1, Authorization: "a:b\r\nX: y"}, {Host: "x", Port: 1, Except: []string{"a b"}}} {
		if _, err := newOutProxy(&bad, nil); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// What a proxy says is read to the end of its head and no further; nothing but a clear yes is one.
func TestOutProxy_Ask(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.1 200 Connection established\r\n\r\nbanner": "",
		"HTTP/1.0 200 OK\r\nVia: x\r\n\r\nbanner":           "",
		"HTTP/1.1 403 Forbidden\r\n\r\n":                    `answers "403 Forbidden"`,
		"HTTP/1.1 407 Who?\r\n\r\n":                         "407",
		"HTTP/2 200 OK\r\n\r\n":                             "answers",
		"SSH-2.0-x 200\r\n\r\n":                             "answers",
		"HTTP/1.1 200 OK\r\n":                               "EOF",
		strings.Repeat("x", proxyHeadBytes+1) + "\r\n\r\n":  "at length",
		"\r\n\r\n": "answers",
	} {
		here, there := net.Pipe()
		asked := make(chan string, 1)
		go func() {
			buf := make([]byte, 1024)
			n, _ := there.Read(buf)
			asked <- string(buf[:n])
			io.WriteString(there, answer) //nolint:errcheck // the asker may have given up
			there.Close()
		}()
		p := outProxy{Proxy: wire.Proxy{Authorization: "user:word"}}
		err := p.ask(here, "far.test:443")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.40q: %v, want %q", answer, err, want)
		}
		if rest, _ := io.ReadAll(here); want == "" && string(rest) != "banner" {
			t.Errorf("%.40q: %q is left", answer, rest)
		}
		here.Close()
		if got := <-asked; got != "CONNECT far.test:443 HTTP/1.1\r\nHost: far.test:443\r\nProxy-Authorization: Basic dXNlcjp3b3Jk\r\n\r\n" {
			t.Errorf("asked %q", got)
		}
	}
}

// Where the task could listen there is no proxy.
func TestAttack_ProxyOnContainersLoopback(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "::1", "::ffff:127.0.0.1"} {
		for _, own := range []bool{false, true} {
			c := testConfig("far.test")
			c.Proxy = &wire.Proxy{Host: host, Port: port, Loopback: own}
			conn, err := newTest(t, c).dialProxy(t.Context())
			if conn != nil {
				conn.Close()
			}
			if !own && (err == nil || !strings.Contains(err.Error(), "own loopback")) {
				t.Errorf("%s: %v", host, err)
			}
			if own && host == "127.0.0.1" && err != nil {
				t.Errorf("%s: %v", host, err)
			}
		}
	}
}

// A proxy that takes the connection and says nothing does not hold a task for good.
func TestOutProxy_Silent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := testConfig("far.test")
	c.Proxy = &wire.Proxy{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).AddrPort().Port(), Loopback: true}
	c.Nameservers = []netip.AddrPort{} // nobody here knows the name, which is the proxy's business
	c.Timeouts.Connect = 200 * time.Millisecond
	g := newTest(t, c)
	if _, err := g.dialName(t.Context(), "far.test", 443); err == nil || !strings.Contains(err.Error(), "proxy of this host") {
		t.Errorf("%v", err)
	}
	c.Timeouts.Connect = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if conn, err := l.Accept(); err == nil {
			defer conn.Close()
			conn.Read(make([]byte, 1)) //nolint:errcheck // something was asked
			cancel()
			<-ctx.Done()
			io.ReadAll(conn) //nolint:errcheck // until the asker is gone
		}
	}()
	if _, err := newTest(t, c).tunnel(ctx, "far.test", 443); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("given up: %v", err)
	}
}
