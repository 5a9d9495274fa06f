package bootstrap

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/shim/socket"
)

// maxProfileSeconds bounds how long one caller can have the processor profiled.
const maxProfileSeconds = 60

// serveProfiles answers at the socket beside the shim's: one line in ("heap", "goroutine", "allocs", "threadcreate",
// "block", "mutex" or "profile SECONDS"), the profile as `go tool pprof` reads it out. The returned function ends it and
// removes the socket. It is no net/http/pprof, since a web server in each shim would cost every host memory.
func (c *command) serveProfiles(logs *logger) (stop func(), err error) {
	path := c.Socket + socket.DebugSuffix
	f, err := socket.New()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := socket.Listen(f, path); err != nil {
		return nil, fmt.Errorf("listen for profiles at %s: %w", path, err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen for profiles: %w", err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // stop has closed it
			}
			// One after the other: the processor is profiled once at a time.
			if err := answerProfile(conn); err != nil {
				logs.Debug(c.ID, "profile: "+err.Error())
			}
			conn.Close()
		}
	}()
	return func() {
		unix.Unlink(path) //nolint:errcheck // what is left of a shim is swept by the next clean-up
		l.Close()
	}, nil
}

// answerProfile reads what is asked for and writes it, or one line that says what can be asked for.
func answerProfile(conn net.Conn) error {
	const patience, maxRequest = 10 * time.Second, 64
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	line, err := bufio.NewReader(io.LimitReader(conn, maxRequest)).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	name, argument, _ := strings.Cut(strings.TrimSpace(line), " ")
	if name != "profile" {
		p := pprof.Lookup(name)
		if p == nil {
			_, err := fmt.Fprintf(conn, "agentsafe: no profile %q; there are goroutine, heap, allocs, threadcreate, block, mutex and profile SECONDS\n", name)
			return err
		}
		return p.WriteTo(conn, 0)
	}
	seconds, err := strconv.Atoi(argument)
	if err != nil || seconds < 1 || seconds > maxProfileSeconds {
		_, err := fmt.Fprintf(conn, "agentsafe: profile %q: give seconds from 1 to %d\n", argument, maxProfileSeconds)
		return err
	}
	span := time.Duration(seconds) * time.Second
	if err := conn.SetDeadline(time.Now().Add(span + patience)); err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(conn); err != nil {
		return err
	}
	time.Sleep(span)
	pprof.StopCPUProfile()
	return nil
}
