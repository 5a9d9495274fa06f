package gateway

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// spliceBytes is how much is moved at once, and the size of the pipes that are asked for.
const spliceBytes = 256 << 10

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
	unix.Close(p.r)
	unix.Close(p.w)
}
