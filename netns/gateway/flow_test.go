package gateway

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tcpPair returns both ends of a connection over loopback.
func tcpPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled := make(chan *net.TCPConn, 1)
	go func() {
		c, _ := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
		dialled <- c
	}()
	b, err = l.AcceptTCP()
	if a = <-dialled; err != nil || a == nil {
		t.Fatalf("connect over loopback: %v", err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// relayed is a flow between a client and a server that the test plays both.
type relayed struct {
	client, server *net.TCPConn
	ended          chan [2]int64
}

func startFlow(t testing.TB, l *loop, f *flow) relayed {
	t.Helper()
	client, in := tcpPair(t)
	out, server := tcpPair(t)
	r := relayed{client, server, make(chan [2]int64, 1)}
	f.ended = func(out, in int64) { r.ended <- [2]int64{out, in} }
	if err := l.relay(f, in, out); err != nil {
		t.Fatal(err)
	}
	return r
}

// relay has the loop relay between two connections.
func (l *loop) relay(f *flow, client, upstream *net.TCPConn) error {
	var err, uerr error
	f.client.fd, err = takeFD(client)
	f.upstream.fd, uerr = takeFD(upstream)
	if err = errors.Join(err, uerr); err == nil && !l.do(func() {
		l.register(f)
		if errors.Join(l.watch(f, &f.client, clientSide), l.watch(f, &f.upstream, upstreamSide), f.out.decide()) != nil {
			l.finish(f, true)
		}
	}) {
		err = net.ErrClosed
	}
	if err != nil {
		f.release(true)
	}
	return err
}

func startLoop(t testing.TB, idle time.Duration) *loop {
	t.Helper()
	l, err := newLoop(idle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.stop)
	return l
}

func (r relayed) wait(t testing.TB) [2]int64 {
	t.Helper()
	select {
	case n := <-r.ended:
		return n
	case <-time.After(20 * time.Second):
		t.Fatal("the flow does not end")
		return [2]int64{}
	}
}

// Both directions carry bytes at once, more than every buffer between holds; an end of one is not one of the other.
func TestFlow(t *testing.T) {
	l := startLoop(t, time.Minute)
	r := startFlow(t, l, &flow{out: way{held: []byte("head "), moved: 5}})
	const size = 24 << 20
	data := make([]byte, size)
	rand.Read(data)
	send := func(c *net.TCPConn) {
		c.Write(data)  //nolint:errcheck // the other side counts
		c.CloseWrite() //nolint:errcheck // likewise
	}
	receive := func(c *net.TCPConn) chan []byte {
		got := make(chan []byte, 1)
		go func() {
			b, _ := io.ReadAll(c)
			got <- b
		}()
		return got
	}
	atServer, atClient := receive(r.server), receive(r.client)
	go send(r.client)
	if got := <-atServer; !bytes.Equal(got, append([]byte("head "), data...)) {
		t.Errorf("to the server: %d bytes, %x", len(got), sha256.Sum256(got))
	}
	go send(r.server)
	if got := <-atClient; !bytes.Equal(got, data) {
		t.Errorf("to the client: %d bytes, %x", len(got), sha256.Sum256(got))
	}
	if n := r.wait(t); n != [2]int64{size + 5, size} {
		t.Errorf("counted %v", n)
	}
}

// A peer that does not read stops the other one, and nothing grows meanwhile.
func TestFlow_BackPressure(t *testing.T) {
	l := startLoop(t, time.Minute)
	r := startFlow(t, l, &flow{})
	r.client.SetWriteDeadline(time.Now().Add(2 * time.Second)) //nolint:errcheck // Write tells
	n, err := r.client.Write(make([]byte, 256<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes went to nobody: %v", n, err)
	}
	got := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(io.Discard, r.server)
		got <- n
	}()
	r.client.CloseWrite() //nolint:errcheck // the server's end of file tells
	r.server.CloseWrite() //nolint:errcheck // likewise
	if m := <-got; m != int64(n) {
		t.Errorf("%d bytes sent, %d received", n, m)
	}
	r.wait(t)
}

// A reset is passed on as one, whoever it comes from and whatever has ended already.
func TestFlow_Reset(t *testing.T) {
	for name, before := range map[string]func(r relayed){
		"idle":               func(relayed) {},
		"half closed":        func(r relayed) { r.client.CloseWrite() },                                      //nolint:errcheck // set up
		"other half closed":  func(r relayed) { r.server.CloseWrite() },                                      //nolint:errcheck // set up
		"with unread bytes":  func(r relayed) { r.server.Write(make([]byte, 4<<20)) },                        //nolint:errcheck // set up
		"with bytes waiting": func(r relayed) { go r.client.Write(make([]byte, 64<<20)); runtime.Gosched() }, //nolint:errcheck // set up
	} {
		t.Run(name, func(t *testing.T) {
			l := startLoop(t, time.Minute)
			for _, fromClient := range []bool{true, false} {
				r := startFlow(t, l, &flow{})
				before(r)
				from, to := r.client, r.server
				if !fromClient {
					from, to = to, from
				}
				abort(from)
				r.wait(t)
				to.SetReadDeadline(time.Now().Add(10 * time.Second)) //nolint:errcheck // Copy tells
				if _, err := io.Copy(io.Discard, to); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("from the client %v: the other side is not told", fromClient)
				}
			}
		})
	}
}

func TestFlow_Ends(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		r := startFlow(t, startLoop(t, time.Millisecond), &flow{})
		r.wait(t)
	})
	t.Run("limit", func(t *testing.T) {
		var left atomic.Int64
		left.Store(1000)
		r := startFlow(t, startLoop(t, time.Minute), &flow{count: func(n int64) bool { return left.Add(-n) >= 0 }})
		r.client.Write(make([]byte, 900)) //nolint:errcheck // the server's bytes tell
		if _, err := io.ReadFull(r.server, make([]byte, 900)); err != nil {
			t.Fatal(err)
		}
		r.client.Write(make([]byte, 900)) //nolint:errcheck // likewise
		r.wait(t)
		if n, err := io.Copy(io.Discard, r.server); n != 0 {
			t.Errorf("%d bytes beyond the limit: %v", n, err)
		}
	})
	t.Run("asked to", func(t *testing.T) {
		l, f := startLoop(t, time.Minute), &flow{}
		r := startFlow(t, l, f)
		l.end(f)
		l.end(f)
		r.wait(t)
	})
	t.Run("with the loop", func(t *testing.T) {
		l, err := newLoop(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		r := startFlow(t, l, &flow{})
		l.stop()
		r.wait(t)
		client, server := tcpPair(t)
		if err := l.relay(&flow{}, client, server); err == nil {
			t.Error("a loop that has ended takes a flow")
		}
	})
	t.Run("head too late", func(t *testing.T) {
		r := startFlow(t, startLoop(t, time.Minute), &flow{out: way{filter: clientSpeaksSSH}, headBy: time.Now().Add(time.Millisecond)})
		r.client.Write([]byte("SS")) //nolint:errcheck // it is reset
		r.wait(t)
	})
}

// What a filter has not passed does not get out, however it is cut.
func TestFlow_Filter(t *testing.T) {
	l := startLoop(t, time.Minute)
	for _, first := range []string{"SSH-2.0-x\r\n", "GET / HTTP/1.1\r\n"} {
		r := startFlow(t, l, &flow{out: way{filter: clientSpeaksSSH}, headBy: time.Now().Add(time.Minute)})
		r.server.Write([]byte("SSH-2.0-server\r\n")) //nolint:errcheck // the client reads it
		banner := make([]byte, 16)
		if _, err := io.ReadFull(r.client, banner); err != nil {
			t.Fatalf("the server does not speak first: %v", err)
		}
		for _, b := range []byte(first) {
			r.client.Write([]byte{b}) //nolint:errcheck // the server's bytes tell
		}
		allowed := first[0] == 'S'
		if allowed {
			r.client.CloseWrite() //nolint:errcheck // likewise
			r.server.CloseWrite() //nolint:errcheck // likewise
		}
		got, _ := io.ReadAll(r.server)
		if want := map[bool]string{true: first}[allowed]; string(got) != want {
			t.Errorf("%q passes of %q", got, first)
		}
		r.wait(t)
	}
}

// An idle flow costs its words and no more: 5,000 of them have to stay within 64 MiB together with everything else.
func TestFlow_IdleMemory(t *testing.T) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Cur < 12_000 {
		t.Skipf("probe RLIMIT_NOFILE: %d open files, want 12000", files.Cur)
	}
	const many = 2000
	l := startLoop(t, time.Hour)
	before := memory()
	for range many {
		client, server := tcpPair(t)
		if err := l.relay(&flow{}, client, server); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	l.do(func() { close(done) })
	<-done
	if each := int64(memory()-before) / many; each > 2<<10 {
		t.Errorf("%d bytes for each idle flow", each)
	}
	if n := runtime.NumGoroutine(); n > 50 {
		t.Errorf("%d goroutines", n)
	}
}

func memory() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
