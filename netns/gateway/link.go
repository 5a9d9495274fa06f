package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// link is a connection outwards that a loop can relay, with a descriptor that has the bytes of the task as they are: TCP, or
// the near end of a secureLink.
type link interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// secureLink is one end of a pair of sockets of this process, behind whose other end everything goes through TLS to the
// proxy. Its addresses are those of that connection.
type secureLink struct {
	*net.UnixConn
	proxy net.Conn
}

// LocalAddr implements net.Conn.
func (l *secureLink) LocalAddr() net.Addr { return l.proxy.LocalAddr() }

// RemoteAddr implements net.Conn.
func (l *secureLink) RemoteAddr() net.Addr { return l.proxy.RemoteAddr() }

// linkOf makes what was dialled for a session one that a loop can relay. It takes the connection over.
func (g *Gateway) linkOf(s *session, c net.Conn) (link, error) {
	if tcp, ok := c.(*net.TCPConn); ok {
		return tcp, nil
	}
	secure, ok := c.(*tls.Conn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("relay a %T", c)
	}
	near, far, err := socketPair()
	if err != nil {
		secure.Close()
		return nil, err
	}
	g.mu.Lock()
	s.behind = secure
	g.mu.Unlock()
	go g.pump(s, far, secure)
	return &secureLink{near, secure}, nil
}

// giveUp closes a connection that nobody has taken; nil is none.
func giveUp(c link) {
	if c == nil {
		return
	}
	if l, ok := c.(*secureLink); ok {
		l.proxy.Close()
	}
	c.Close()
}

// socketPair returns both ends of a stream.
func socketPair() (near, far *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, cerr := net.FileConn(f)
		f.Close()
		conns[i], _ = c.(*net.UnixConn)
		err = errors.Join(err, cerr)
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}

// pump moves bytes between a pair's far end and TLS until both directions have ended in order. If one does not, the task's
// connection is reset: a pair of sockets has no reset of its own, and its end would look like that of a complete transfer.
func (g *Gateway) pump(s *session, far *net.UnixConn, secure *tls.Conn) {
	defer far.Close()
	defer secure.Close()
	out := make(chan error, 1)
	go func() {
		_, err := io.Copy(secure, far)
		if err == nil {
			err = secure.CloseWrite()
		} else {
			secure.Close()
		}
		out <- err
	}()
	_, err := io.Copy(far, secure)
	if err != nil {
		g.closeSessions(func(other *session) bool { return other == s })
		return
	}
	_ = far.CloseWrite() // the task's end may be gone, which the other direction tells
	<-out                //nolint:errcheck // it has closed what had to be closed
}

// letGoAfter is how long what a session has left behind may take to leave.
const letGoAfter = 30 * time.Second

// letGo ends the connection behind a session that has ended, once what is on its way has had time to leave.
func (s *session) letGo() {
	s.g.mu.Lock()
	behind := s.behind
	s.behind = nil
	s.g.mu.Unlock()
	if behind != nil {
		time.AfterFunc(letGoAfter, func() { behind.Close() })
	}
}
