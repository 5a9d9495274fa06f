package gateway

import (
	"bytes"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// flow is two connections and the bytes between them. A loop owns it: nothing here is locked, and an idle flow is these
// few words, without a goroutine, a buffer or a pipe.
type flow struct {
	client, upstream end
	out, in          way // from and to the task
	slot             int32
	closed           bool
	// queued says that the loop comes back to it without an event; kept that keepAlive has been asked for.
	queued, kept bool
	// active is when the last byte moved; headBy, if it is set, when what the filters wait for has to be there.
	active, headBy time.Time
	// opening is what is waited for before any byte is relayed; nil once it is there.
	opening *opening
	// count is asked about the bytes of each move towards upstream, countIn about those of the others; either ends the
	// flow when it returns false.
	count, countIn func(n int64) bool
	// ended is called once, with the bytes from and to the task.
	ended func(out, in int64)
}

// end is one connection: what is known of its readiness, edge by edge.
type end struct {
	fd                 int
	readable, writable bool
	// ended says that what has come is all that comes.
	ended bool
}

// Sides of a flow, in the events of its ends.
const (
	clientSide   = 0
	upstreamSide = 1
)

// filter sees all that was read in one direction and not passed on yet. It says how many bytes of that may pass, and
// done when it has seen enough: the rest passes unseen. An error resets both connections.
type filter func(held []byte) (pass int, done bool, err error)

// way is one direction.
type way struct {
	// filter is nil once everything passes.
	filter filter
	// held was read for the filter, or before there was a flow; its first free bytes may be written.
	held []byte
	free int
	// pipe holds piped bytes; without any there is no pipe.
	pipe  *pipe
	piped int
	moved int64
	// bulk says that more comes at a time than is worth copying.
	bulk bool
	// eof says that nothing more comes, shut that the other side has been told.
	eof, shut bool
}

// maxHeld bounds what a filter makes a way keep.
const maxHeld = 64 << 10

var (
	errOverLimit = errors.New("limit of bytes used up")
	errHeld      = errors.New("too many bytes before a decision")
)

// fdHolder is a socket in the Go runtime's care.
type fdHolder interface {
	syscall.Conn
	io.Closer
}

// takeFD moves a descriptor out of the Go runtime's care; its holder is closed in any case.
func takeFD(c fdHolder) (int, error) {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var ferr error
	if err := raw.Control(func(have uintptr) { fd, ferr = unix.FcntlInt(have, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	return fd, os.NewSyscallError("dup", ferr)
}

// moves is how often a way may move before the other flows have their turn.
const moves = 4

// turn moves what can be moved. It reports whether more could be at once, and ends the flow on an error.
func (f *flow) turn(m *means, now time.Time) (more bool, err error) {
	outMore, err := f.advance(&f.out, &f.in, &f.client, &f.upstream, f.count, m, now)
	if err != nil {
		return false, err
	}
	inMore, err := f.advance(&f.in, &f.out, &f.upstream, &f.client, f.countIn, m, now)
	return outMore || inMore, err
}

// finished says that both directions have ended in order.
func (f *flow) finished() bool { return f.out.shut && f.in.shut }

func (f *flow) advance(w, other *way, from, to *end, count func(int64) bool, m *means, now time.Time) (more bool, err error) {
	for range moves {
		if w.over() && other.shut { // closing says the same, and both are closed right away
			w.shut = true
			return false, nil
		}
		progress, err := w.step(from, to, count, m)
		if err != nil {
			return false, err
		}
		if !progress {
			return false, nil
		}
		f.active = now
	}
	return true, nil
}

// over says that everything has been passed on but the end.
func (w *way) over() bool { return w.eof && w.free == 0 && w.piped == 0 }

// step makes one move: it writes what is there, else it reads.
func (w *way) step(from, to *end, count func(int64) bool, m *means) (progress bool, err error) {
	switch {
	case w.shut:
		return false, nil
	case w.free > 0:
		return w.writeHeld(to)
	case w.piped > 0:
		return w.drain(to, m)
	case w.eof:
		// An end of file is passed on as one; errors are resets, so that a reset never looks like a complete transfer.
		w.shut = true
		return true, ignoreNotConnected(shutdownFD(to.fd))
	case !from.readable:
		return false, nil
	case w.filter != nil:
		return w.readHeld(from, count, m)
	case w.bulk:
		return w.fill(from, count, m)
	}
	return w.pass(from, to, count, m)
}

// ignoreNotConnected: the other side may be gone already, which the next read or write tells.
func ignoreNotConnected(err error) error {
	if errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}

func (w *way) writeHeld(to *end) (bool, error) {
	if !to.writable {
		return false, nil
	}
	n, err := sendFD(to.fd, w.held[:w.free])
	if errors.Is(err, unix.EAGAIN) {
		to.writable = false
		return false, nil
	}
	if err != nil {
		return false, err
	}
	w.held, w.free = w.held[n:], w.free-n
	if len(w.held) == 0 {
		w.held = nil
	}
	return true, nil
}

// readHeld reads for the filter.
func (w *way) readHeld(from *end, count func(int64) bool, m *means) (bool, error) {
	n, err := readFD(from.fd, m.buf[:])
	switch {
	case errors.Is(err, unix.EINTR):
		return true, nil
	case errors.Is(err, unix.EAGAIN):
		from.readable = false
		return false, nil
	case err != nil:
		return false, err
	case n == 0:
		// What a filter still holds was incomplete: it is not passed on.
		w.eof, w.held, w.free, w.filter = true, nil, 0, nil
		return true, nil
	}
	w.held = append(w.held, m.buf[:n]...)
	w.moved += int64(n)
	if count != nil && !count(int64(n)) {
		return false, errOverLimit
	}
	return true, w.decide()
}

func (w *way) decide() error {
	if w.filter == nil {
		w.free = len(w.held)
		return nil
	}
	pass, done, err := w.filter(w.held)
	if err != nil {
		return err
	}
	if w.free = pass; done {
		w.filter, w.free = nil, len(w.held)
	}
	if len(w.held)-w.free > maxHeld {
		return errHeld
	}
	return nil
}

// pass copies a small piece to the other side. What that does not take at once is held.
func (w *way) pass(from, to *end, count func(int64) bool, m *means) (bool, error) {
	n, err := readFD(from.fd, m.buf[:])
	switch {
	case errors.Is(err, unix.EINTR):
		return true, nil
	case errors.Is(err, unix.EAGAIN):
		from.readable = false
		return false, nil
	case err != nil:
		return false, err
	case n == 0:
		w.eof = true
		return true, nil
	}
	w.moved += int64(n)
	if count != nil && !count(int64(n)) {
		return false, errOverLimit
	}
	b := m.buf[:n]
	if w.bulk = n == len(m.buf); !w.bulk && !from.ended {
		from.readable = false // less than was asked for is all there was, and what comes next is a new edge
	}
	if to.writable {
		sent, err := sendFD(to.fd, b)
		switch {
		case errors.Is(err, unix.EAGAIN):
			to.writable = false
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return false, err
		default:
			b = b[sent:]
		}
	}
	if len(b) > 0 {
		w.held, w.free = bytes.Clone(b), len(b)
	}
	return true, nil
}

// fill moves what has come into a pipe.
func (w *way) fill(from *end, count func(int64) bool, m *means) (bool, error) {
	p, err := m.pipes.get()
	if err != nil {
		return false, err
	}
	n, err := splice(from.fd, p.w)
	if n <= 0 {
		m.pipes.put(p)
		switch {
		case errors.Is(err, unix.EAGAIN):
			from.readable = false
			return false, nil
		case err == nil:
			w.eof = true
			return true, nil
		}
		return false, err
	}
	w.pipe, w.piped, w.bulk = p, n, n >= copyBytes
	w.moved += int64(n)
	if count != nil && !count(int64(n)) {
		return false, errOverLimit
	}
	return true, nil
}

// drain moves bytes out of the pipe, and gives it back when it is empty.
func (w *way) drain(to *end, m *means) (bool, error) {
	if !to.writable {
		return false, nil
	}
	n, err := splice(w.pipe.r, to.fd)
	switch {
	case errors.Is(err, unix.EAGAIN):
		to.writable = false
		return false, nil
	case err != nil:
		return false, err
	case n == 0:
		return false, io.ErrUnexpectedEOF
	}
	if w.piped -= n; w.piped == 0 {
		m.pipes.put(w.pipe)
		w.pipe = nil
	}
	return true, nil
}

// release closes everything; with reset the peers see that it was no orderly end.
func (f *flow) release(reset bool) {
	for _, e := range []*end{&f.client, &f.upstream} {
		if e.fd < 0 {
			continue
		}
		if reset {
			resetFD(e.fd)
		} else {
			closeFD(e.fd)
		}
		e.fd = -1
	}
	for _, w := range []*way{&f.out, &f.in} {
		if w.pipe != nil {
			w.pipe.close()
			w.pipe = nil
		}
		w.held = nil
	}
}
