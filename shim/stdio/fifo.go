package stdio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// firstRetry is how soon a FIFO that nobody reads from is tried again.
const firstRetry = 200 * time.Microsecond

// openWriter opens a FIFO for writing as soon as somebody reads from it, and then holds a reading end as well, so that
// a reader that goes away makes writers wait instead of failing. It returns when ctx ends.
func openWriter(ctx context.Context, path string) (writer, reader *os.File, err error) {
	for delay := firstRetry; ; delay = min(2*delay, 50*time.Millisecond) {
		// O_NONBLOCK answers ENXIO while there is no reader, where a blocking open would hold a thread.
		writer, err = openFIFO(path, unix.O_WRONLY)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENXIO) {
			return nil, nil, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("open fifo %s: nobody reads from it: %w", path, context.Cause(ctx))
		case <-time.After(delay):
		}
	}
	if reader, err = openFIFO(path, unix.O_RDONLY); err != nil {
		writer.Close()
		return nil, nil, err
	}
	return writer, reader, nil
}

// openReader opens a FIFO for reading, and a writing end that keeps the end of file away until it is closed: an engine
// that disconnects and comes back must not end the process's input.
func openReader(path string) (reader, holder *os.File, err error) {
	if reader, err = openFIFO(path, unix.O_RDONLY); err != nil {
		return nil, nil, err
	}
	if holder, err = openFIFO(path, unix.O_WRONLY); err != nil {
		reader.Close()
		return nil, nil, err
	}
	return reader, holder, nil
}

func openFIFO(path string, mode int) (*os.File, error) {
	fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open fifo %s: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("stat fifo %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		unix.Close(fd)
		return nil, fmt.Errorf("open fifo %s: not a fifo: %w", path, unix.EINVAL)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// isFIFO reports whether path names a FIFO; an error if it names nothing.
func isFIFO(path string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return false, fmt.Errorf("stat %s: %w", path, err)
	}
	return st.Mode&unix.S_IFMT == unix.S_IFIFO, nil
}

// pipe makes a pipe of which one end is the container's: blocking, as programs expect it, and owned by its user, so
// that /dev/stdout can be opened again. The other end is the shim's and belongs to the poller.
func pipe(uid, gid int, childReads bool) (ours, childs *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("create pipe: %w", err)
	}
	own, child := fds[0], fds[1]
	if childReads {
		own, child = fds[1], fds[0]
	}
	err = unix.Fchown(child, uid, gid)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		err = nil // without the capability, or in a user namespace without the id, the pipe stays root's
	}
	if err == nil {
		err = unix.SetNonblock(own, true)
	}
	if err != nil {
		unix.Close(own)
		unix.Close(child)
		return nil, nil, fmt.Errorf("prepare pipe: %w", err)
	}
	return os.NewFile(uintptr(own), "pipe"), os.NewFile(uintptr(child), "pipe"), nil
}
