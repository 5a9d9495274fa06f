package gateway

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Bounds of a move.
const (
	// copyBytes is how much is read at once of what comes in small pieces: up to there two copies are cheaper than a pipe.
	copyBytes = 16 << 10
	// spliceBytes is how much a splice moves at most, and pipeBytes the size of the pipes that are asked for. A page that
	// is not full takes as much of a pipe as one that is, so a pipe holds less than its size.
	spliceBytes = 1 << 20
	pipeBytes   = 1 << 20
	// fewerPipeBytes is asked for when the user's share of large pipes is used up.
	fewerPipeBytes = 256 << 10
)

// means are what a loop moves bytes with.
type means struct {
	pipes pipePool
	buf   [copyBytes]byte
}

func splice(from, to int) (int, error) {
	for {
		n, err := spliceFD(from, to, spliceBytes)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// pipe is what splice moves through. It is empty whenever it is in the pool.
type pipe struct{ r, w int }

// pipePool keeps pipes for the next transfer: making one costs more than moving a small message.
type pipePool struct{ idle []*pipe }

const maxIdlePipes = 16

func (pool *pipePool) get() (*pipe, error) {
	if n := len(pool.idle); n > 0 {
		p := pool.idle[n-1]
		pool.idle = pool.idle[:n-1]
		return p, nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	if _, err := unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeBytes); err != nil {
		unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, fewerPipeBytes) //nolint:errcheck // then it is as small as it is
	}
	return &pipe{fds[0], fds[1]}, nil
}

// put takes an empty pipe.
func (pool *pipePool) put(p *pipe) {
	if len(pool.idle) < maxIdlePipes {
		pool.idle = append(pool.idle, p)
		return
	}
	p.close()
}

// close closes all pipes.
func (pool *pipePool) close() {
	for _, p := range pool.idle {
		p.close()
	}
	pool.idle = nil
}

func (p *pipe) close() {
	closeFD(p.r)
	closeFD(p.w)
}
