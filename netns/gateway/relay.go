package gateway

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spliceBytes is how much is moved at once, and the size of the pipes that are asked for.
const spliceBytes = 256 << 10

// relay moves bytes between two connections until both directions have ended, one has failed, or nothing has moved in
// either for the idle time. It closes both. count is called with the bytes of each move towards upstream, and ends the
// relay when it returns false.
type relay struct {
	client, upstream *net.TCPConn
	idle             time.Duration
	count            func(n int64) bool
	pipes            *pipePool
	// head, if set, reads and checks what the client says first, and returns it; it is sent before the rest.
	head    func(client *net.TCPConn) ([]byte, error)
	in, out atomic.Int64 // to and from the task
	active  atomic.Int64 // when the last byte moved, nanoseconds
}

func (r *relay) run() {
	r.active.Store(time.Now().UnixNano())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.pump(r.client, r.upstream, &r.in, nil)
	}()
	if err := r.sendHead(); err != nil {
		abort(r.client, r.upstream)
	} else {
		r.pump(r.upstream, r.client, &r.out, r.count)
	}
	<-done
	r.client.Close()
	r.upstream.Close()
}

// pump moves one direction. An end of file is passed on as one, anything else resets both connections: a reset must not
// look like a complete transfer.
func (r *relay) pump(dst, src *net.TCPConn, total *atomic.Int64, count func(int64) bool) {
	err := r.copy(dst, src, total, count)
	if err == nil {
		err = dst.CloseWrite()
	}
	if err != nil {
		abort(dst, src)
	}
}

// abort resets connections, and wakes whoever reads or writes.
func abort(conns ...*net.TCPConn) {
	for _, c := range conns {
		c.SetLinger(0) //nolint:errcheck // it may be closed already
		c.Close()
	}
}

func (r *relay) sendHead() error {
	if r.head == nil {
		return nil
	}
	head, err := r.head(r.client)
	if err != nil {
		return err
	}
	if !r.count(int64(len(head))) {
		return errOverLimit
	}
	n, err := r.upstream.Write(head)
	r.out.Add(int64(n))
	return err
}

var errOverLimit = errors.New("limit of bytes used up")

func (r *relay) copy(dst, src *net.TCPConn, total *atomic.Int64, count func(int64) bool) error {
	from, err := src.SyscallConn()
	if err != nil {
		return err
	}
	to, err := dst.SyscallConn()
	if err != nil {
		return err
	}
	for {
		p, n, err := r.receive(src, from)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		r.active.Store(time.Now().UnixNano())
		total.Add(int64(n))
		if count != nil && !count(int64(n)) {
			p.close()
			return errOverLimit
		}
		if err := p.drain(to, n); err != nil {
			p.close()
			return err
		}
		r.pipes.put(p)
	}
}

// receive waits for bytes and moves them into a pipe, which is the caller's if n > 0. While nothing comes no pipe is
// held: idle connections cost no descriptors.
func (r *relay) receive(src *net.TCPConn, from syscall.RawConn) (p *pipe, n int, err error) {
	for {
		src.SetReadDeadline(time.Now().Add(r.idle)) //nolint:errcheck // Read says what is wrong
		var serr error
		err = from.Read(func(fd uintptr) bool {
			if p == nil {
				if p, serr = r.pipes.get(); serr != nil {
					return true
				}
			}
			n, serr = splice(int(fd), p.w)
			if errors.Is(serr, unix.EAGAIN) {
				r.pipes.put(p)
				p = nil
				return false
			}
			return true
		})
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Since(time.Unix(0, r.active.Load())) < r.idle && r.active.Load() > 0 {
			continue // the other direction is alive
		}
		if err == nil {
			err = serr
		}
		if p != nil && (err != nil || n == 0) {
			r.pipes.put(p)
		}
		return p, n, err
	}
}

func splice(from, to int) (int, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, spliceBytes, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if !errors.Is(err, unix.EINTR) {
			return int(n), err
		}
	}
}

// pipe is what splice moves through. It is empty whenever it is in the pool.
type pipe struct{ r, w int }

// pipePool keeps pipes for the next transfer: making one costs more than moving a small message.
type pipePool struct {
	mu   sync.Mutex
	idle []*pipe
}

const maxIdlePipes = 64

func (pool *pipePool) get() (*pipe, error) {
	pool.mu.Lock()
	if n := len(pool.idle); n > 0 {
		p := pool.idle[n-1]
		pool.idle = pool.idle[:n-1]
		pool.mu.Unlock()
		return p, nil
	}
	pool.mu.Unlock()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, spliceBytes) //nolint:errcheck // the user's share of large pipes is used up
	return &pipe{fds[0], fds[1]}, nil
}

// put takes an empty pipe.
func (pool *pipePool) put(p *pipe) {
	pool.mu.Lock()
	defer pool.mu.Unlock()
	if len(pool.idle) < maxIdlePipes {
		pool.idle = append(pool.idle, p)
		return
	}
	p.close()
}

func (p *pipe) close() {
	unix.Close(p.r) //nolint:errcheck // nothing can be done
	unix.Close(p.w) //nolint:errcheck // likewise
}

// drain moves n bytes out of the pipe; the rest stays in it if that fails.
func (p *pipe) drain(to syscall.RawConn, n int) error {
	for n > 0 {
		var moved int
		var serr error
		err := to.Write(func(fd uintptr) bool {
			moved, serr = splice(p.r, int(fd))
			return !errors.Is(serr, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return err
		case serr != nil:
			return os.NewSyscallError("splice", serr)
		case moved == 0:
			return io.ErrUnexpectedEOF
		}
		n -= moved
	}
	return nil
}
