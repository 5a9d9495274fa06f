package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// TestOrigins: the kernel tells the control group of a socket, and the file whose that is; a line counts once it is complete.
func TestOrigins(t *testing.T) {
	var diag []*os.File
	for range 2 {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		if err != nil {
			t.Fatal(err)
		}
		diag = append(diag, os.NewFile(uintptr(fd), "diag"))
	}
	path := filepath.Join(t.TempDir(), "origins")
	write := func(text string) {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	o := newOrigins(diag, file)
	if o == nil {
		t.Fatal("no origins")
	}
	defer o.close()
	var last, lastServer netip.AddrPort
	for _, family := range []struct{ tcp, udp, address string }{{"tcp4", "udp4", "127.0.0.1:0"}, {"tcp6", "udp6", "[::1]:0"}} {
		l, err := net.Listen(family.tcp, family.address)
		if err != nil {
			t.Logf("without %s: %v", family.tcp, err)
			continue
		}
		defer l.Close()
		c, err := net.Dial(family.tcp, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		client, server := addrPortOf(c.LocalAddr()), addrPortOf(l.Addr())
		last, lastServer = client, server
		groups := o.ask(o.socket, question(unix.IPPROTO_TCP, client, server, 0))
		if len(groups) != 1 || groups[0] == 0 {
			t.Fatalf("the groups of a connection: %v", groups)
		}
		u, err := net.Dial(family.udp, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		asker := u.LocalAddr().(*net.UDPAddr).AddrPort()
		if family.tcp == "tcp4" {
			if who, ok := o.connection(client, server); ok {
				t.Errorf("nobody has said whose it is, and it is %+v", who)
			}
			write("nonsense\n{}\n" + fmt.Sprintf(`{"cgroup":%d,"container":"c","exec":"one"`, groups[0]))
			if who, ok := o.connection(client, server); ok {
				t.Errorf("half a line says that it is %+v", who)
			}
			write(",\"branch\":\"b\"}\n")
		}
		want := wire.Origin{Cgroup: groups[0], Container: "c", Exec: "one", Branch: "b"}
		if who, ok := o.connection(client, server); !ok || who != want {
			t.Errorf("a connection is of %+v, %v; want %+v", who, ok, want)
		}
		if who, ok := o.datagram(asker); !ok || who != want {
			t.Errorf("a datagram is of %+v, %v; want %+v", who, ok, want)
		}
		if who, ok := o.connection(client, netip.AddrPortFrom(server.Addr(), 1)); ok {
			t.Errorf("a connection that isn't there is of %+v", who)
		}
	}
	floodDatagrams(t, o)
	if last.IsValid() {
		if _, ok := o.connection(last, lastServer); !ok {
			t.Error("a connection is nobody's any more")
		}
	}
	var none *origins
	if _, ok := none.connection(netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2")); ok {
		t.Error("without a socket nobody is known")
	}
	none.close()
}

// floodDatagrams opens a great many sockets with one port, which are not all looked through.
func floodDatagrams(t *testing.T, o *origins) {
	t.Helper()
	var held []net.PacketConn
	reuse := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }) //nolint:errcheck // binding fails then
	}}
	var many netip.AddrPort
	for at := "127.0.0.1:0"; len(held) < 200*maxAnswers; at = many.String() {
		u, err := reuse.ListenPacket(t.Context(), "udp4", at)
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		held = append(held, u)
		many = u.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	if _, ok := o.datagram(many); ok || o.dumps >= 0 {
		t.Errorf("a datagram of one of %d sockets is somebody's: %v, %d", len(held), ok, o.dumps)
	}
}
