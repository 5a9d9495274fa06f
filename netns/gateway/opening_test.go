package gateway

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// TestOpening: what can become of a connection before it is relayed, told by the client's side, the log and what is left.
func TestOpening(t *testing.T) {
	if !isolated(t) {
		return
	}
	answerHellos(t)
	hello := string(clientHello(t, &tls.Config{ServerName: "example.com", MinVersion: tls.VersionTLS12}))
	other := strings.ReplaceAll(hello, "example.com", "exfilte.com")
	const alert = "\x15\x03\x03\x00\x02\x02\x31"
	for name, tc := range map[string]struct {
		port     uint16
		say      string
		before   func(g *Gateway)
		want     string
		wantCode egress.Code
	}{
		"relayed":                      {port: 443, say: hello, want: "answer"},
		"another name":                 {port: 443, say: other, want: alert, wantCode: egress.NameMismatch},
		"nobody listens":               {port: 444, say: hello, want: alert, wantCode: egress.Unreachable},
		"nothing is said":              {port: 443, wantCode: egress.WrongProtocol},
		"half a hello":                 {port: 443, say: hello[:50], want: alert, wantCode: egress.WrongProtocol},
		"a protocol that no rule lets": {port: 443, say: "\x00\x01\x02", wantCode: egress.WrongProtocol},
		"two addresses, one of them dead": {port: 443, say: hello, want: "answer", before: func(g *Gateway) {
			known(g, "2606:2800:220::99", outsideHost)
		}},
		"an address that is refused": {port: 443, say: hello, want: alert, wantCode: egress.BadAddress, before: func(g *Gateway) {
			known(g, "10.0.0.1")
		}},
		"bytes used up": {port: 443, say: hello, before: func(g *Gateway) { g.shared.Load().limits.EgressBytes = 10 }},
		"denied meanwhile": {port: 443, say: hello, want: alert, wantCode: egress.DeniedByRule, before: func(g *Gateway) {
			p, err := egress.Compile(egress.Config{Allow: []string{"example.com"}, Deny: []string{"example.com:443"}})
			if err != nil {
				t.Error(err)
			}
			g.policy.Store(p)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig("https://example.com:443,444")
			c.Timeouts.Head = time.Second
			g := newTest(t, c)
			known(g, outsideHost)
			l, err := newLoop(time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			defer l.stop()
			l.listen(t.Context(), g, nil)
			g.loops = []*loop{l}
			task, here := connected(t)
			s := &session{g: g, conn: here, begin: time.Now(), name: "example.com", port: tc.port}
			if d := g.open(s); !d.Allowed {
				t.Fatalf("%+v", d)
			}
			if tc.before != nil {
				tc.before(g)
			}
			io.WriteString(task, tc.say) //nolint:errcheck // what comes back tells
			g.adopt(s, tc.port)
			task.SetReadDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // ReadAll tells
			got, err := io.ReadAll(task)
			if ne, ok := err.(net.Error); ok && ne.Timeout() { //nolint:errorlint // as net returns it
				t.Fatalf("it waits: %v", err)
			}
			if string(got) != tc.want {
				t.Errorf("the client reads %q, want %q", got, tc.want)
			}
			task.Close()
			awaitNone(t, g)
			refused, _ := g.log.snapshot()
			if tc.wantCode != "" && (len(refused) != 1 || refused[0].Code != tc.wantCode) || tc.wantCode == "" && len(refused) != 0 {
				t.Errorf("the log has %+v, want one %q", refused, tc.wantCode)
			}
		})
	}
}

// answerHellos gives loopback the address of a host outside, which answers on port 443.
func answerHellos(t *testing.T) {
	t.Helper()
	for _, line := range []string{"link set lo up", "addr add " + outsideHost + " dev lo"} {
		if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", line, err, out)
		}
	}
	server, err := net.Listen("tcp", outsideHost+":443")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if n, _ := c.Read(make([]byte, 4096)); n > 0 {
					io.WriteString(c, "answer") //nolint:errcheck // the client sees
				}
			}()
		}
	}()
}

// known has a gateway know the addresses of example.com.
func known(g *Gateway, addrs ...string) {
	const name = "example.com"
	a := &answer{ready: make(chan struct{}), expires: time.Now().Add(time.Hour)}
	for _, text := range addrs {
		a.addrs = append(a.addrs, netip.MustParseAddr(text))
	}
	close(a.ready)
	g.resolver.mu.Lock()
	defer g.resolver.mu.Unlock()
	g.resolver.cache[name] = a
}

// awaitNone waits until no session is left.
func awaitNone(t *testing.T, g *Gateway) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		n := len(g.sessions)
		g.mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d sessions are left", n)
		}
	}
}
