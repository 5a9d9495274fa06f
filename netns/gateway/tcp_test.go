package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// connected is both ends of a connection: the task's and the gateway's.
func connected(t *testing.T) (task, here *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// trickle writes bytes one by one until the other side is gone.
func trickle(c net.Conn, b []byte, pause time.Duration) {
	for i := range b {
		if _, err := c.Write(b[i : i+1]); err != nil {
			return
		}
		time.Sleep(pause)
	}
}

func TestReadHead_OneByteSegments(t *testing.T) {
	hello := clientHello(t, &tls.Config{ServerName: "example.com"})
	for name, sent := range map[egress.Protocol][]byte{egress.TLS: hello, egress.HTTP: []byte("OPTIONS "), egress.SSH: []byte("SSH-")} {
		task, here := connected(t)
		go trickle(task, sent, 0)
		head, proto, err := readHead(here, time.Minute)
		if err != nil || proto != name || !bytes.Equal(head, sent) {
			t.Errorf("%s: %q, %d of %d bytes, %v", name, proto, len(head), len(sent), err)
		}
	}
}

// Bytes that trickle in hold nothing open.
func TestAttack_SlowHello(t *testing.T) {
	task, here := connected(t)
	go trickle(task, slices.Concat([]byte{22, 3, 1, 0x3f, 0, 1, 0, 0x3e, 0}, make([]byte, 10000)), time.Millisecond)
	if head, proto, err := readHead(here, 300*time.Millisecond); err == nil || proto != "" || !strings.Contains(err.Error(), "nothing complete within") {
		t.Errorf("%d bytes, %q, %v", len(head), proto, err)
	}
}

// A hello has an end, whatever its lengths promise.
func TestAttack_GiantHello(t *testing.T) {
	record := func(n int) []byte {
		return append(binary.BigEndian.AppendUint16([]byte{22, 3, 1}, uint16(n)), make([]byte, n)...)
	}
	large := record(16 << 10)
	copy(large[5:], []byte{1, 0xff, 0xff, 0xff})
	small := record(1)
	small[5] = 1
	for name, sent := range map[string][]byte{
		"a length of 16 MiB": large, "a record of 64 KiB": {22, 3, 1, 0xff, 0xff, 1},
		"one byte a record": bytes.Repeat(small, 2*maxHelloBytes/len(small)+64), // its length is 0x010101
	} {
		task, here := connected(t)
		go func() {
			task.Write(sent)  //nolint:errcheck // the gateway may have had enough
			task.CloseWrite() //nolint:errcheck // likewise
		}()
		head, proto, err := readHead(here, time.Minute)
		d := newTest(t, testConfig("example.com")).checkHello(&session{name: "example.com", port: 443}, head)
		if len(head) > 3*maxHelloBytes || d.Allowed || err == nil && (proto != egress.TLS || d.Code != egress.WrongProtocol) {
			t.Errorf("%s: %d bytes, %q, %v, %+v", name, len(head), proto, err, d)
		}
	}
}

// A request whose head never ends is cut off.
func TestAttack_SlowRequest(t *testing.T) {
	c := testConfig("http://example.com")
	c.Timeouts.Head = 300 * time.Millisecond
	g := newTest(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go g.web.serve(ctx)
	task, here := connected(t)
	s := &session{g: g, conn: here, begin: time.Now(), name: "example.com", port: 80}
	if d := g.open(s); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	g.web.take(s, []byte("GET / HTTP/1.1\r\nHost: example.com\r\nX: "))
	go trickle(task, bytes.Repeat([]byte("a"), 1<<20), time.Millisecond)
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, task)
		ended <- err
	}()
	select {
	case <-ended: //nolint:errcheck // in order or by a reset
	case <-time.After(time.Minute):
		t.Error("it is waited for")
	}
}
