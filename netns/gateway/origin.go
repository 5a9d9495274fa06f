package gateway

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// origins tell whose connections are: the kernel knows of each socket the control group of the process that made it, for
// as long as the socket exists, and the runtime has written down which command has which group before that command ran an
// instruction. Nothing is looked for in /proc, so no process can end, or hand a socket on, at the wrong moment: a socket
// that was handed on is its maker's. A task can't choose the group either, since it would have to write to a cgroup of the
// host. It can make a socket that isn't found (bound to a device): then the log has the container alone.
//
// Source: 6e3a401fc8af ("inet_diag: Add cgroup id attribute"), Linux 5.9.
type origins struct {
	mu     sync.Mutex
	socket int      // of NETLINK_SOCK_DIAG in the container's namespace
	dumps  int      // likewise, for questions with many answers; -1 once there were too many
	file   *os.File // lines of wire.Origin, to which the runtime appends; its position is what has been read
	part   []byte   // of a line that is not complete
	known  map[uint64]wire.Origin
	buf    [8 << 10]byte
}

// maxAnswers bounds the datagrams of one answer: a task may have any number of sockets with one port (SO_REUSEPORT), and
// looking through them is not at its own cost. After that nobody is told any more who asks for names.
const maxAnswers = 16

// maxOrigins bounds the commands that are remembered. Each has an engine's request behind it.
const maxOrigins = 16384

// newOrigins takes the files over, the first two of which are sockets; nil without them.
func newOrigins(sockets []*os.File, file *os.File) *origins {
	const wanted = 2
	if len(sockets) != wanted || file == nil {
		return nil
	}
	var fds [wanted]int
	for i, f := range sockets {
		var err error
		if fds[i], err = takeFD(f); err == nil {
			err = unix.SetNonblock(fds[i], true) // whoever made it need not have
		}
		if err != nil {
			return nil // what is open is closed with the process, which goes on without
		}
	}
	return &origins{socket: fds[0], dumps: fds[1], file: file, known: map[uint64]wire.Origin{}}
}

func (o *origins) close() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	unix.Close(o.socket)
	o.endDumps()
	o.file.Close()
	o.socket = -1
}

// connection returns who has made the socket of a connection from client to server, as the task sees them.
func (o *origins) connection(client, server netip.AddrPort) (wire.Origin, bool) {
	return o.find(client, func() []uint64 { return o.ask(o.socket, question(unix.IPPROTO_TCP, client, server, 0)) })
}

// datagram returns who has made the socket that a datagram came from. Where it was sent to is not known, since the rules
// have redirected it, so all sockets with that port are asked for: if they are of several commands, it is nobody's.
func (o *origins) datagram(client netip.AddrPort) (wire.Origin, bool) {
	return o.find(client, func() (groups []uint64) {
		for _, family := range [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			q := question(unix.IPPROTO_UDP, netip.AddrPortFrom(family, client.Port()), netip.AddrPort{}, unix.NLM_F_DUMP)
			groups = append(groups, o.ask(o.dumps, q)...)
		}
		return groups
	})
}

// endDumps gives up the socket for questions with many answers: what the kernel still has to say would be taken for the
// answer to the next one.
func (o *origins) endDumps() {
	if o.dumps >= 0 {
		unix.Close(o.dumps)
		o.dumps = -1
	}
}

// identify looks for who has made a session's connection, once, and not for a line that would not be written.
func (g *Gateway) identify(s *session) {
	if g.origins == nil || !s.server.IsValid() || g.log.full() {
		return
	}
	s.identified.Do(func() {
		var client netip.AddrPort
		if s.conn != nil {
			client = addrPortOf(s.conn.RemoteAddr())
		} else if s.flow != nil {
			client = peerAddressFD(s.flow.client.fd)
		}
		s.who, _ = g.origins.connection(client, s.server)
	})
}

// peerAddressFD is the other side of a connection.
func peerAddressFD(fd int) netip.AddrPort {
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch a := peer.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)) //nolint:gosec // a port
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)) //nolint:gosec // likewise
	}
	return netip.AddrPort{}
}

func (o *origins) find(client netip.AddrPort, groups func() []uint64) (wire.Origin, bool) {
	if o == nil || !client.IsValid() {
		return wire.Origin{}, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.socket < 0 {
		return wire.Origin{}, false
	}
	var group uint64
	for _, g := range groups() {
		if group != 0 && g != group {
			return wire.Origin{}, false
		}
		group = g
	}
	if group == 0 {
		return wire.Origin{}, false
	}
	if _, ok := o.known[group]; !ok {
		o.read()
	}
	who, ok := o.known[group]
	return who, ok
}

// read takes in what the runtime has written since.
func (o *origins) read() {
	for {
		n, err := o.file.Read(o.buf[:])
		o.part = append(o.part, o.buf[:n]...)
		for {
			line, rest, whole := bytes.Cut(o.part, []byte("\n"))
			if !whole {
				break
			}
			var who wire.Origin
			if json.Unmarshal(line, &who) == nil && who.Cgroup != 0 {
				if len(o.known) >= maxOrigins {
					clear(o.known)
				}
				o.known[who.Cgroup] = who
			}
			o.part = rest
		}
		if err != nil || n == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				o.part = nil
			}
			return
		}
	}
}

// Constants of linux/sock_diag.h and linux/inet_diag.h that x/sys lacks.
const (
	sockDiagByFamily = 20
	inetDiagCgroupID = 21
	sizeofInetDiag   = 72 // struct inet_diag_msg
	loopbackIndex    = 1
)

// question is a struct inet_diag_req_v2: about one connection, or with NLM_F_DUMP about all sockets of a port.
func question(protocol byte, client, server netip.AddrPort, flags uint16) []byte {
	ne, be := binary.NativeEndian, binary.BigEndian
	const size = unix.SizeofNlMsghdr + 56
	b := make([]byte, 0, size)
	b = ne.AppendUint32(b, size)
	b = ne.AppendUint16(b, sockDiagByFamily)
	b = ne.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = append(b, make([]byte, 8)...) // sequence, port
	family := byte(unix.AF_INET6)
	if client.Addr().Unmap().Is4() {
		family = unix.AF_INET
	}
	b = append(b, family, protocol, 0, 0)
	b = ne.AppendUint32(b, 1<<32-1) // in any state
	b = be.AppendUint16(b, client.Port())
	b = be.AppendUint16(b, server.Port())
	for _, a := range [...]netip.Addr{client.Addr(), server.Addr()} {
		var at [16]byte
		if a.IsValid() {
			copy(at[:], a.Unmap().AsSlice())
		}
		b = append(b, at[:]...)
	}
	b = ne.AppendUint32(b, loopbackIndex) // finds what is bound to no device, or to this one
	return ne.AppendUint64(b, 1<<64-1)    // any cookie
}

// ask returns the control groups of the sockets in an answer, which is there when the request has been sent.
func (o *origins) ask(socket int, request []byte) (groups []uint64) {
	if _, err := sendFD(socket, request); err != nil {
		return nil
	}
	for range maxAnswers {
		n, from, err := unix.Recvfrom(socket, o.buf[:], unix.MSG_DONTWAIT)
		if err != nil {
			return groups
		}
		if nl, ok := from.(*unix.SockaddrNetlink); !ok || nl.Pid != 0 {
			continue // only the kernel's word counts
		}
		messages, err := syscall.ParseNetlinkMessage(o.buf[:n])
		if err != nil {
			return groups
		}
		done := false
		for i := range messages {
			m := &messages[i]
			if m.Header.Type != sockDiagByFamily {
				done = true
				continue
			}
			if g := groupOf(m.Data); g != 0 {
				groups = append(groups, g)
			}
		}
		if done || len(messages) == 1 && messages[0].Header.Flags&unix.NLM_F_MULTI == 0 {
			return groups
		}
	}
	o.endDumps()
	return nil
}

// groupOf reads the control group of one struct inet_diag_msg, 0 if it has none.
func groupOf(b []byte) uint64 {
	if len(b) < sizeofInetDiag {
		return 0
	}
	for rest := b[sizeofInetDiag:]; len(rest) >= unix.SizeofNlAttr; {
		n := int(binary.NativeEndian.Uint16(rest))
		if n < unix.SizeofNlAttr || n > len(rest) {
			return 0
		}
		if binary.NativeEndian.Uint16(rest[2:]) == inetDiagCgroupID && n == unix.SizeofNlAttr+8 {
			return binary.NativeEndian.Uint64(rest[unix.SizeofNlAttr:])
		}
		rest = rest[min((n+3)&^3, len(rest)):]
	}
	return 0
}
