package pump

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// spliceBytes is how much one splice(2) may move: more than a pipe holds by default.
const spliceBytes = 1 << 20

// bufferBytes is the size of a copy without splice(2).
const bufferBytes = 32 << 10

var buffers = sync.Pool{New: func() any { //nolint:gochecknoglobals // a pool is shared or of no use
	b := make([]byte, bufferBytes)
	return &b
}}

// Stream moves everything from one file to another until the end of src, and reports how much to moved. The end of a
// terminal (EIO) is an end. Both files are in non-blocking mode unless dst is a regular file.
func Stream(dst, src *os.File, moved func(n int)) error { return first(dst, src, math.MaxInt64, moved) }

// first moves at most bytes; it returns nil at the end of src, and when they have been moved.
func first(dst, src *os.File, most int64, moved func(n int)) error {
	for most > 0 {
		n, err := splice(dst, src, int(min(most, spliceBytes)))
		switch {
		case n > 0:
			most -= int64(n)
			moved(n)
		case errors.Is(err, unix.EINVAL):
			return Copy(dst, io.LimitReader(src, most), moved)
		case errors.Is(err, unix.EIO):
			return nil
		case err != nil:
			return err
		default:
			return nil
		}
	}
	return nil
}

// splice moves what src has, waiting for src to have something and for dst to take it; 0 is the end of src.
func splice(dst, src *os.File, most int) (int, error) {
	from, err := src.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int64
	var serr error
	full := false
	err = from.Read(func(fd uintptr) bool {
		n, full, serr = spliceOnce(dst, fd, most)
		// EAGAIN with room at the destination: the source is empty, so wait for it.
		return full || !errors.Is(serr, unix.EAGAIN)
	})
	if err != nil {
		return 0, err
	}
	if !full {
		return int(n), serr
	}
	if err := waitWritable(dst); err != nil {
		return 0, err
	}
	return splice(dst, src, most)
}

// spliceOnce tries; full says that it is the destination that keeps it from moving anything.
func spliceOnce(dst *os.File, src uintptr, most int) (n int64, full bool, err error) {
	to, err := dst.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	cerr := to.Control(func(fd uintptr) {
		for {
			n, err = unix.Splice(int(src), nil, int(fd), nil, most, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if errors.Is(err, unix.EAGAIN) {
			// Asked of the source: if the destination made room in this very moment, waiting for the source would be
			// waiting for data that is there already.
			full = ready(int(src), unix.POLLIN)
		}
	})
	if cerr != nil {
		return 0, false, cerr
	}
	return n, full, err
}

func ready(fd int, events int16) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}} //nolint:gosec // descriptors fit
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// waitWritable waits until dst takes more, or has failed.
func waitWritable(dst *os.File) error {
	to, err := dst.SyscallConn()
	if err != nil {
		return err
	}
	return to.Write(func(fd uintptr) bool { return ready(int(fd), unix.POLLOUT) })
}

// Copy moves everything with a buffer. The end of a terminal (EIO) is an end.
func Copy(dst io.Writer, src io.Reader, moved func(n int)) error {
	buf := buffers.Get().(*[]byte) //nolint:forcetypeassert // the pool's own
	defer buffers.Put(buf)
	for {
		n, err := src.Read(*buf)
		if n > 0 {
			moved(n)
			if _, werr := dst.Write((*buf)[:n]); werr != nil {
				return werr
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, syscall.EIO):
			return nil
		default:
			return fmt.Errorf("read output: %w", err)
		}
	}
}
