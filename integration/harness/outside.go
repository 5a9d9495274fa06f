package harness

import (
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Outside is an address that belongs to a machine on the other side of the box's network, and a port of it.
const (
	Outside     = "93.184.216.34"
	OutsidePort = "9000"
)

// StartOutside gives the box a network with one machine in it, at Outside, that lasts as long as the test. At OutsidePort
// it says "hello" and reads whatever comes.
func (b *Box) StartOutside(t testing.TB) {
	t.Helper()
	script := func(text string) {
		if out, err := exec.Command("sh", "-ec", text).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", text, err, out)
		}
	}
	script(`ip netns add outside
ip link add out0 type veth peer name o0 netns outside
ip addr add 203.0.113.1/30 dev out0
ip link set out0 up
ip -n outside addr add 203.0.113.2/30 dev o0
ip -n outside addr add ` + Outside + ` dev lo
ip -n outside link set lo up
ip -n outside link set o0 up
ip route add ` + Outside + ` via 203.0.113.2`)
	t.Cleanup(func() {
		script("ip link del out0; ip netns del outside")
		unix.Unmount("/run/netns", unix.MNT_DETACH) // `ip netns` makes it a mount point; the box ends with it
	})
	if t.Failed() {
		t.FailNow()
	}
	l, err := listenIn("/run/netns/outside", ":"+OutsidePort)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.WriteString(c, "hello\n") //nolint:errcheck // the other side decides
				io.Copy(io.Discard, c)       //nolint:errcheck // likewise
			}()
		}
	}()
}

// listenIn listens in another network namespace, on a thread that is thrown away.
func listenIn(namespace, address string) (l net.Listener, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var ns *os.File
		if ns, err = os.Open(namespace); err != nil {
			return
		}
		defer ns.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err == nil {
			l, err = net.Listen("tcp", address)
		}
	}()
	<-done
	return l, err
}
