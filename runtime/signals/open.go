package signals

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// pipeEnd is the descriptor that the handler writes to; -1 is none. It is the process's, as its handlers are.
var pipeEnd atomic.Int32 //nolint:gochecknoglobals // a handler has no other way to find it

// Open redirects all signals that are worth forwarding to a pipe and returns its reading end, which does not block. It
// stays like that until the process ends; a second call takes over from the first. The caller owns the file.
func Open() (*os.File, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("create pipe for signals: %w", err)
	}
	// The writing end is never closed: a handler may be about to use it.
	pipeEnd.Store(int32(p[1])) //nolint:gosec // descriptors fit
	for _, s := range forwarded() {
		if err := redirect(s); err != nil {
			unix.Close(p[0]) //nolint:errcheck // the first error is the one to report
			return nil, fmt.Errorf("handle signal %d: %w", s, err)
		}
	}
	return os.NewFile(uintptr(p[0]), "signals"), nil
}

// Read returns the signals that have arrived and not been read, in their order; none if there are none.
func Read(f *os.File) []unix.Signal {
	var buf [64]byte
	n, err := unix.Read(int(f.Fd()), buf[:])
	if err != nil {
		return nil
	}
	out := make([]unix.Signal, 0, n)
	for _, b := range buf[:n] {
		out = append(out, unix.Signal(b))
	}
	return out
}

// forwarded lists what a process sends to another on purpose. 32 and 33 are the C library's own.
func forwarded() []unix.Signal {
	const firstRealTime, last = 34, 64
	out := []unix.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTERM,
		unix.SIGCONT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGVTALRM, unix.SIGWINCH,
		unix.SIGIO, unix.SIGPWR,
	}
	for s := unix.Signal(firstRealTime); s <= last; s++ {
		out = append(out, s)
	}
	return out
}
