package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Console is the receiving end of a runtime's --console-socket.
type Console struct {
	// Path is what to give to --console-socket.
	Path string

	listener *net.UnixListener
	got      chan error
	done     chan struct{}
	mu       sync.Mutex
	output   bytes.Buffer
	master   *os.File
}

// Console listens for one terminal and collects what comes out of it. It ends with the test.
func (b *Box) Console(t testing.TB) *Console {
	t.Helper()
	c := &Console{Path: "/run/" + b.ID() + ".sock", got: make(chan error, 1), done: make(chan struct{})}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	c.listener = l
	go c.serve()
	t.Cleanup(func() {
		l.Close()
		_ = os.Remove(c.Path)
		if c.master != nil {
			c.master.Close()
		}
	})
	return c
}

func (c *Console) serve() {
	defer close(c.done)
	master, err := c.receive()
	c.master = master
	c.got <- err
	if err != nil {
		return
	}
	buf := make([]byte, 4096)
	for {
		n, err := master.Read(buf)
		c.mu.Lock()
		c.output.Write(buf[:n])
		c.mu.Unlock()
		if err != nil { // EIO: the last slave is closed
			return
		}
	}
}

func (c *Console) receive() (*os.File, error) {
	conn, err := c.listener.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	data, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(data, oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("%d control messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "console"), nil
}

// Terminal waits for the terminal.
func (c *Console) Terminal(t testing.TB) *os.File {
	t.Helper()
	select {
	case err := <-c.got:
		if err != nil {
			t.Fatalf("receive console: %v", err)
		}
		c.got <- nil
		return c.master
	case <-time.After(20 * time.Second):
		t.Fatal("no console within 20 s")
		return nil
	}
}

// Output waits until the terminal's last user is gone and returns all that came out of it.
func (c *Console) Output(t testing.TB) string {
	t.Helper()
	c.Terminal(t)
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		t.Error("the console is still open after 20 s")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.output.String()
}

// WriteTo sends s to the terminal.
func (c *Console) WriteTo(t testing.TB, s string) {
	t.Helper()
	if _, err := io.WriteString(c.Terminal(t), s); err != nil && !errors.Is(err, os.ErrClosed) {
		t.Fatal(err)
	}
}
