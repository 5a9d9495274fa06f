package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// secured is a session's link through TLS, the connection of its task, and the server's end of the TLS.
func secured(t *testing.T) (near link, task *net.TCPConn, server *tls.Conn) {
	t.Helper()
	authority, trust := testAuthority(t)
	client, there := connected(t)
	server = tls.Server(there, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return authority.Certificate("proxy.test")
	}})
	secure := tls.Client(client, &tls.Config{RootCAs: trust, ServerName: "proxy.test", MinVersion: tls.VersionTLS12})
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err := errors.Join(secure.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	g := newTest(t, testConfig("tcp://a.test:1"))
	task, here := connected(t)
	s := &session{g: g, conn: here, begin: time.Now(), name: "a.test", port: 1, proto: egress.Raw}
	if d := g.open(s); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	near, err := g.linkOf(s, secure)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	if near.RemoteAddr().String() != there.LocalAddr().String() {
		t.Errorf("it goes to %s", near.RemoteAddr())
	}
	return near, task, server
}

// Bytes pass both ways, each to its end in order.
func TestLink_TLS(t *testing.T) {
	near, _, server := secured(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() {
		got, err := io.ReadAll(server) // until the half that comes is closed
		if err == nil {
			server.Write(got) //nolint:errcheck // the other side sees what is missing
		}
		server.Close()
	}()
	go func() {
		near.Write(sent)  //nolint:errcheck // likewise
		near.CloseWrite() //nolint:errcheck // likewise
	}()
	got, err := io.ReadAll(near)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes came back, %v", len(got), len(sent), err)
	}
}

// A TLS connection that breaks off resets the task's: it must not look like a complete transfer.
func TestAttack_Link_Truncated(t *testing.T) {
	near, task, server := secured(t)
	if _, err := server.Write([]byte("half of it")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if _, err := io.ReadFull(near, buf); err != nil {
		t.Fatal(err)
	}
	server.NetConn().Close()                          //nolint:errcheck // without a close_notify
	task.SetReadDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // Read says what is wrong
	if n, err := task.Read(buf); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v", n, err)
	}
}
