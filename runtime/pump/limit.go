package pump

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Limit is how a stream ends early.
type Limit struct {
	// MaxBytes are passed on, at most.
	MaxBytes int64
	// Line is written after them, in one piece, with a line feed before and behind it.
	Line string
	// Discard reads and drops what comes later; without it the writer gets EPIPE.
	Discard bool
	// Cut is called once when the limit is met.
	Cut func()
}

// Run moves a stream until its source ends, or its limit is met. It closes both files.
func (l *Limit) Run(dst, src *os.File) error {
	defer src.Close()
	defer func() { dst.Close() }()
	left := l.MaxBytes
	count := func(n int) { left -= int64(n) }
	var err error
	if isSocket(dst) {
		err = Copy(dst, io.LimitReader(src, left), count) // it waits in write(2), not in the poller
	} else {
		err = first(dst, src, left, count)
	}
	if err != nil || left > 0 {
		return brokenPipe(err)
	}
	if !more(src) {
		return nil // exactly so many
	}
	if l.Cut != nil {
		l.Cut()
	}
	_, err = io.WriteString(dst, "\n"+l.Line+"\n")
	// Whoever reads sees the end at once, also where the task goes on.
	dst.Close()
	if !l.Discard || brokenPipe(err) != nil {
		return brokenPipe(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("discard output: %w", err)
	}
	defer null.Close()
	return Stream(null, src, func(int) {})
}

func isSocket(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeSocket != 0
}

// brokenPipe forgives a reader that has gone: the source is closed, so that the writer learns of it, too.
func brokenPipe(err error) error {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// more waits for src to have something or to end, and reports whether it has something.
func more(src *os.File) bool {
	conn, err := src.SyscallConn()
	if err != nil {
		return false
	}
	has := false
	err = conn.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // descriptors fit
		n, err := unix.Poll(p, 0)
		has = n > 0 && p[0].Revents&unix.POLLIN != 0
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	return err == nil && has
}

// Source duplicates the reading end of a pipe; the result belongs to the poller. f stays the caller's, who closes it: the
// writer gets EPIPE when the last one is closed.
func Source(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("take pipe: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("take pipe: %w", err)
	}
	return os.NewFile(uintptr(fd), "output"), nil
}

// Destination opens what an engine wants a stream written to once more, so that its mode is ours alone; f stays the
// caller's. A pipe whose reader has gone is one of nobody's.
func Destination(f *os.File) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("take output: %w", err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFIFO {
		again, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), os.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			return again, nil
		}
		if errors.Is(err, unix.ENXIO) {
			return deadEnd()
		}
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("take output: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// deadEnd is a pipe without a reader.
func deadEnd() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("create pipe: %w", err)
	}
	r.Close()
	return w, nil
}
