package initproc

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Listen makes the socket that start connects to, at name in dir, with mode 0600. The caller owns the file.
// The path goes through /proc/self/fd, since state directories of engines are longer than sun_path's 108 bytes.
func Listen(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create start socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socketPath(dir, name)}); err != nil {
		f.Close()
		return nil, fmt.Errorf("bind start socket: %w", err)
	}
	if err := unix.Fchmodat(int(dir.Fd()), name, 0o600, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("set mode of start socket: %w", err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		f.Close()
		return nil, fmt.Errorf("listen on start socket: %w", err)
	}
	return f, nil
}

func socketPath(dir *os.File, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + name
}

// ErrNotWaiting says that no init waits at the start socket: it runs already, or is gone.
var ErrNotWaiting = errors.New("init does not wait for start")

// Start tells the init that listens at name in dir to execute the container's program, and waits until it has or
// reports why it could not. Report is the program's table, as Create stored it.
func Start(dir *os.File, name string, table *Table) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("create socket: %w", err)
	}
	conn := os.NewFile(uintptr(fd), "start")
	defer conn.Close()
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: socketPath(dir, name)})
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return ErrNotWaiting
	}
	if err != nil {
		return fmt.Errorf("connect to init: %w", err)
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return fmt.Errorf("start init: %w", err)
	}
	_, err = readReport(conn, table.program())
	if errors.Is(err, errSilent) {
		return nil
	}
	return err
}

// Table is what start needs of the program that create planned: the names of the operations behind the start point.
// It is part of the state file.
type Table struct {
	First int      `json:"first"`
	What  []string `json:"what"`
}

// StartTable returns the names of the operations that come after the start point.
func (p *Program) StartTable() *Table {
	t := &Table{First: len(p.meta)}
	for i := len(p.meta) - 1; i >= 0 && p.meta[i].step != "wait for start"; i-- {
		t.First = i
	}
	for _, m := range p.meta[t.First:] {
		t.What = append(t.What, m.what)
	}
	return t
}

// program rebuilds as much of a program as failure needs.
func (t *Table) program() *Program {
	p := &Program{meta: make([]opMeta, t.First+len(t.What))}
	for i, what := range t.What {
		p.meta[t.First+i] = opMeta{what: what, step: "execute"}
	}
	return p
}
