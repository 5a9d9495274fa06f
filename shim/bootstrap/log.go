package bootstrap

import (
	"fmt"
	"os"
	rundebug "runtime/debug"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// logger writes lines in containerd's format to the FIFO "log" in the bundle, which containerd copies to its own log.
type logger struct{ file *os.File }

// openLog opens the FIFO. It is held open in both directions: containerd may go away and come back to it.
func openLog(debug bool) (*logger, error) {
	fd, err := unix.Open("log", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l := &logger{file: os.NewFile(uintptr(fd), "log")}
	if err := log.SetFormat(log.TextFormat); err != nil {
		return nil, fmt.Errorf("set log format: %w", err)
	}
	if debug {
		if err := log.SetLevel("debug"); err != nil {
			return nil, fmt.Errorf("set log level: %w", err)
		}
	}
	// Standard error is nothing: without this a crash leaves no trace.
	if err := rundebug.SetCrashOutput(l.file, rundebug.CrashOptions{}); err != nil {
		return nil, fmt.Errorf("set crash output: %w", err)
	}
	log.L.Logger.SetOutput(dropWhenFull{l.file})
	return l, nil
}

// dropWhenFull loses lines that nobody reads: a container must not wait for a log.
type dropWhenFull struct{ file *os.File }

func (d dropWhenFull) Write(line []byte) (int, error) {
	conn, err := d.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = conn.Control(func(fd uintptr) { unix.Write(int(fd), line) }) //nolint:errcheck // see above
	return len(line), err
}

func entry(id string) *log.Entry {
	e := log.L.WithField("runtime", Name)
	if id != "" {
		e = e.WithField("id", id)
	}
	return e
}

// Debug implements shim.Log.
func (*logger) Debug(id, message string) { entry(id).Debug(message) }

// Warn implements shim.Log.
func (*logger) Warn(id, message string) { entry(id).Warn(message) }

// Error implements shim.Log.
func (*logger) Error(id, message string) { entry(id).Error(message) }
