package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/thread"
)

// ErrOwnNamespace is returned instead of touching the namespace that the
// caller itself runs in: rules there would cut the host off.
var ErrOwnNamespace = errors.New("it is the caller's own network namespace")

// within runs open on a thread that is in ns, and brings the thread back.
// Sockets stay bound to the namespace in which they were made, so open only
// makes sockets: no other code ever runs inside ns.
//
// setns there and back takes about 20 us, less than starting a thread. A
// caller in a user namespace that doesn't own its network namespace (rootless)
// could enter but never return, so it gets a thread that is thrown away.
func within(ns *os.File, open func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer own.Close()
	if err := differ(ns, own); err != nil {
		return err
	}
	if err := setns(own); err != nil {
		done := make(chan error)
		thread.Go(func() { done <- enter(ns, open) })
		return <-done
	}
	err = enter(ns, open)
	if back := setns(own); back != nil {
		// Going on would run the caller's next steps, hooks among them, in
		// the container's network. Nothing short of an end is safe.
		panic(fmt.Sprintf("netns: leave network namespace %q: %v", ns.Name(), back))
	}
	return err
}

// Within runs f on a thread that is in ns, and brings the thread back. What f makes belongs to ns: sockets, and processes,
// which start in it. f must do nothing else there, and start no goroutine. Errors: ErrOwnNamespace, as Install.
func Within(ns *os.File, f func() error) error { return within(ns, f) }

func enter(ns *os.File, open func() error) error {
	if err := setns(ns); err != nil {
		return fmt.Errorf("enter network namespace %q: %w", ns.Name(), err)
	}
	return open()
}

func setns(ns *os.File) error { return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET) }

// differ refuses the caller's own namespace. nsfs gives each namespace an
// inode of its own.
func differ(ns, own *os.File) error {
	var a, b unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &a); err != nil {
		return fmt.Errorf("stat network namespace %q: %w", ns.Name(), err)
	}
	if err := unix.Fstat(int(own.Fd()), &b); err != nil {
		return fmt.Errorf("stat own network namespace: %w", err)
	}
	if a.Dev == b.Dev && a.Ino == b.Ino {
		return fmt.Errorf("network namespace %q: %w", ns.Name(), ErrOwnNamespace)
	}
	return nil
}

// conn is a netlink socket. The kernel works on a request within sendmsg, so
// whatever it has to answer is queued when send returns: nothing ever waits.
type conn struct {
	fd  int
	buf []byte // of one answer
}

// answerMaxBytes is more than any answer to our requests: the kernel makes
// datagrams no larger than the reader's buffer, unless one object needs it.
const answerMaxBytes = 16 << 10

// dialIn opens a netlink socket that belongs to ns, which is as for Install. The caller closes it.
func dialIn(ns *os.File, protocol int) (c *conn, err error) {
	err = within(ns, func() (err error) {
		c, err = dial(protocol)
		return err
	})
	return c, err
}

func dial(protocol int) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket %d: %w", protocol, err)
	}
	return &conn{fd: fd}, nil
}

func (c *conn) Close() {
	if c != nil {
		_ = unix.Close(c.fd)
	}
}

func (c *conn) send(packet []byte) error {
	if err := unix.Sendto(c.fd, packet, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send netlink request: %w", err)
	}
	return nil
}

// errDrained says that the kernel has nothing more to say.
var errDrained = errors.New("no answer")

// receive reads one datagram and calls visit for each message in it, whose
// body is valid until the next receive. Only the kernel's are taken: a process in the namespace can write to our
// port if it has CAP_NET_ADMIN there.
func (c *conn) receive(visit func(m message) error) error {
	if c.buf == nil {
		c.buf = make([]byte, answerMaxBytes)
	}
	for {
		n, from, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return errDrained
		case err != nil:
			return fmt.Errorf("receive netlink answer: %w", err)
		case n > len(c.buf):
			return fmt.Errorf("receive netlink answer: %d bytes, room for %d", n, len(c.buf))
		}
		if nl, ok := from.(*unix.SockaddrNetlink); !ok || nl.Pid != 0 {
			continue
		}
		return eachMessage(c.buf[:n], visit)
	}
}

// message is one netlink message.
type message struct {
	typ, flags uint16
	seq        uint32
	body       []byte
}

func eachMessage(b []byte, visit func(m message) error) error {
	ne := binary.NativeEndian
	for len(b) >= nlHeaderLen {
		n := int(ne.Uint32(b))
		if n < nlHeaderLen || n > len(b) {
			return fmt.Errorf("parse netlink answer: message of %d bytes in %d", n, len(b))
		}
		if err := visit(message{ne.Uint16(b[4:]), ne.Uint16(b[6:]), ne.Uint32(b[8:]), b[nlHeaderLen:n]}); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

// errno returns the error number of an NLMSG_ERROR or NLMSG_DONE message; 0
// is an acknowledgement.
func (m message) errno() unix.Errno {
	if len(m.body) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.body)))
}

// eachAttr calls visit for each attribute; the nested flag is cut off.
func eachAttr(b []byte, visit func(typ uint16, data []byte)) {
	ne := binary.NativeEndian
	for len(b) >= 4 {
		n := int(ne.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		visit(ne.Uint16(b[2:])&^nlAttrNested, b[4:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}
