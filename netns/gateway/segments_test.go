package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// isolatedEnv names the test that runs in a network namespace of its own.
const isolatedEnv = "GATEWAY_TEST_ISOLATED"

// isolated runs the test again in a process with a network namespace of its own, which has no way out, and returns true
// there.
func isolated(t *testing.T) bool {
	t.Helper()
	if os.Getenv(isolatedEnv) == t.Name() {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("probe euid: network namespaces need root")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), isolatedEnv+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in the namespace: %v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP: "+t.Name()+" ") {
		t.Skipf("in the namespace:\n%s", out)
	}
	return false
}

// Addresses of the namespace: the client of raw packets has none of the kernel's.
const (
	packetClient = "192.0.2.2"
	packetServer = "192.0.2.1"
	outsideHost  = "93.184.216.34"
)

// TestAttack_Segments sends hellos in segments that come late, twice, in any order, and with other bytes for the same
// place, as a task with raw sockets could. What gets out is what was judged, byte by byte.
func TestAttack_Segments(t *testing.T) {
	if !isolated(t) {
		return
	}
	tun := openTun(t)
	config := testConfig("https://example.com:7443")
	config.Timeouts.Head = time.Minute
	g := newTest(t, config)
	known(g, outsideHost)
	l, err := newLoop(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer l.stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l.listen(ctx, g, nil)
	g.loops = []*loop{l}
	here, err := net.Listen("tcp", packetServer+":443")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	outside, err := net.Listen("tcp", outsideHost+":7443")
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	good := clientHello(t, &tls.Config{ServerName: "example.com", MinVersion: tls.VersionTLS12})
	bad := bytes.ReplaceAll(good, []byte("example.com"), []byte("exfilte.com"))
	arrived := collect(outside, len(good))
	for name, segments := range map[string][]segment{
		"in order":                 cutUp(good, 100),
		"backwards":                backwards(cutUp(good, 50)),
		"shuffled, one byte each":  shuffled(cutUp(good, 1)),
		"twice":                    append(cutUp(good, 64), cutUp(good, 96)...),
		"another name behind":      append(cutUp(good, 64)[:len(cutUp(good, 64))-1], append(cutUp(bad, 64), cutUp(good, 64)...)...),
		"another name ahead":       append(backwards(cutUp(bad, 64))[:len(cutUp(bad, 64))-1], backwards(cutUp(good, 64))...),
		"another name, in between": append(shuffled(append(cutUp(bad, 37)[1:], cutUp(good, 53)[1:]...)), append(cutUp(good, 53), cutUp(bad, 37)...)...),
	} {
		t.Run(name, func(t *testing.T) {
			c := tun.connect(t, 443)
			task, err := here.Accept()
			if err != nil {
				t.Fatal(err)
			}
			s := &session{g: g, conn: task.(*net.TCPConn), begin: time.Now(), name: "example.com", port: 7443}
			if d := g.open(s); !d.Allowed {
				t.Fatalf("%+v", d)
			}
			g.adopt(s, 7443)
			for _, part := range segments {
				c.send(t, flagACK|flagPSH, c.next+uint32(part.at), part.bytes)
			}
			said := c.receive(t)
			select {
			case b := <-arrived:
				if h, err := parseHello(b); err != nil || h.serverName != "example.com" || said != "answer" {
					t.Errorf("a hello for %q gets out (%v), and the client is told %q", h.serverName, err, said)
				}
			default:
				// The kernel put the other name in: then the client is refused, and nothing gets out.
				if !strings.Contains(name, "another") || said == "answer" {
					t.Errorf("nothing gets out, and the client is told %q", said)
				}
			}
		})
	}
}

// collect returns the first n bytes of each connection, and answers it.
func collect(l net.Listener, n int) chan []byte {
	arrived := make(chan []byte, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, n)
			if _, err = io.ReadFull(c, b); err == nil {
				arrived <- b
				io.WriteString(c, "answer") //nolint:errcheck // the client sees
			}
			c.Close()
		}
	}()
	return arrived
}

// segment is a part of a stream.
type segment struct {
	at    int
	bytes []byte
}

func cutUp(b []byte, size int) []segment {
	var out []segment
	for at := 0; at < len(b); at += size {
		out = append(out, segment{at, b[at:min(at+size, len(b))]})
	}
	return out
}

func backwards(s []segment) []segment {
	for i, j := 0, len(s)-1; i < j; i, j = i+1, j-1 {
		s[i], s[j] = s[j], s[i]
	}
	return s
}

func shuffled(s []segment) []segment {
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] }) //nolint:gosec // the same order each time
	return s
}

// tunDevice is the other side of a point-to-point link: packets as they come.
type tunDevice struct {
	file *os.File
	port uint16 // of the next connection
}

func openTun(t *testing.T) *tunDevice {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("probe /dev/net/tun: %v", err)
	}
	request, err := unix.NewIfreq("raw0")
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		t.Skipf("probe TUNSETIFF: %v", err)
	}
	for _, line := range []string{
		"link set lo up", "addr add " + outsideHost + " dev lo", "addr add " + packetServer + " peer " + packetClient + " dev raw0", "link set raw0 up",
	} {
		if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", line, err, out)
		}
	}
	d := &tunDevice{file: os.NewFile(uintptr(fd), "tun"), port: 40000}
	t.Cleanup(func() { d.file.Close() })
	return d
}

// Flags of TCP. Source: RFC 9293, 3.1.
const (
	flagFIN = 1
	flagSYN = 2
	flagRST = 4
	flagPSH = 8
	flagACK = 16
)

// packetConn is the client's side of a connection, without a kernel's help.
type packetConn struct {
	tun      *tunDevice
	from, to uint16
	next     uint32 // of what is sent
	seen     uint32 // up to here the server was received
}

// connect shakes hands.
func (d *tunDevice) connect(t *testing.T, port uint16) *packetConn {
	t.Helper()
	d.port++
	c := &packetConn{tun: d, from: d.port, to: port, next: 1000}
	c.send(t, flagSYN, c.next, nil)
	p := c.read(t)
	if p.flags&(flagSYN|flagACK) != flagSYN|flagACK {
		t.Fatalf("no answer to the handshake, but %+v", p)
	}
	c.next, c.seen = c.next+1, p.seq+1
	c.send(t, flagACK, c.next, nil)
	return c
}

// receive returns what the server says until it ends; a reset is an end.
func (c *packetConn) receive(t *testing.T) string {
	t.Helper()
	var said []byte
	for {
		p := c.read(t)
		if p.flags&flagRST != 0 {
			return string(said)
		}
		if p.seq == c.seen {
			said = append(said, p.data...)
			c.seen += uint32(len(p.data))
			if p.flags&flagFIN != 0 {
				c.send(t, flagRST, p.ack, nil)
				return string(said)
			}
		}
		if len(p.data) > 0 {
			c.send(t, flagACK, p.ack, nil)
		}
	}
}

type packet4 struct {
	seq, ack uint32
	flags    byte
	data     []byte
}

// read returns the next packet of the connection.
func (c *packetConn) read(t *testing.T) packet4 {
	t.Helper()
	buf := make([]byte, 64<<10)
	for {
		c.tun.file.SetReadDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // Read tells
		n, err := c.tun.file.Read(buf)
		if err != nil {
			t.Fatalf("read packet: %v", err)
		}
		b := buf[:n]
		if n < 40 || b[0]>>4 != 4 || b[9] != unix.IPPROTO_TCP {
			continue
		}
		b = b[int(b[0]&15)*4 : binary.BigEndian.Uint16(b[2:])]
		if binary.BigEndian.Uint16(b[2:]) != c.from {
			continue
		}
		return packet4{binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), b[13], bytes.Clone(b[int(b[12]>>4)*4:])}
	}
}

// send writes one packet.
func (c *packetConn) send(t *testing.T, flags byte, seq uint32, data []byte) {
	t.Helper()
	be := binary.BigEndian
	src, dst := netip.MustParseAddr(packetClient).As4(), netip.MustParseAddr(packetServer).As4()
	tcp := be.AppendUint16(be.AppendUint16(nil, c.from), c.to)
	tcp = be.AppendUint32(be.AppendUint32(tcp, seq), c.seen)
	tcp = append(tcp, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	tcp = append(tcp, data...)
	pseudo := append(append(append([]byte{}, src[:]...), dst[:]...), 0, unix.IPPROTO_TCP)
	be.PutUint16(tcp[16:], checksum(append(be.AppendUint16(pseudo, uint16(len(tcp))), tcp...)))
	ip := append(be.AppendUint16([]byte{0x45, 0}, uint16(20+len(tcp))), 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0)
	ip = append(append(ip, src[:]...), dst[:]...)
	be.PutUint16(ip[10:], checksum(ip))
	if _, err := c.tun.file.Write(append(ip, tcp...)); err != nil {
		t.Fatal(fmt.Errorf("write packet: %w", err))
	}
}

// checksum is the one of the internet. Source: RFC 1071.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
