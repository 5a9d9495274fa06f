package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/shim"
	"github.com/agentsafe/agentsafe/shim/idle"
	"github.com/agentsafe/agentsafe/shim/options"
)

// flushTime bounds how long the last events are tried when the shim ends.
const flushTime = 10 * time.Second

// answerTime is what the last answer has to leave.
const answerTime = 100 * time.Millisecond

// serve is the shim itself: it answers at descriptor 3 until its last task is gone.
func (c *command) serve() error {
	// Memory that is given back early costs a shim little and a host with many of them much.
	const gcPercent = 40
	debug.SetGCPercent(gcPercent)
	logs, err := openLog(c.Debug)
	if err != nil {
		return err
	}
	listener, err := inherited()
	if err != nil {
		return err
	}
	var handler options.Options
	if c.Options != "" {
		if err := json.Unmarshal([]byte(c.Options), &handler); err != nil {
			return fmt.Errorf("-options: %w", err)
		}
	}
	events := shim.NewPublisher(c.ttrpc, c.Namespace, func(m string) { logs.Warn("", m) })
	done := make(chan struct{})
	boxes := &runtimes{namespace: c.Namespace, warn: func(m string) { logs.Debug(c.ID, m) }}
	service := shim.New(shim.Config{
		Version:   c.build.Version,
		Namespace: c.Namespace, Publisher: events, Open: boxes.get, Profile: c.Profile, Options: handler, Log: logs,
		Shutdown: func() { close(done) },
	})
	unused := idle.NewUnused(idleTime, func() {
		if service.EndIfIdle() {
			logs.Warn(c.ID, "nobody uses the shim: its start was broken off, or containerd has forgotten it")
		}
	})
	server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()),
		ttrpc.WithUnaryServerInterceptor(watched(idle.NewWatch(restTime, restPause), unused)))
	if err != nil {
		return fmt.Errorf("create server: %w", err)
	}
	service.Register(server)
	c.handleSignals(logs)
	if c.Debug && c.Socket != "" {
		stop, err := c.serveProfiles(logs)
		if err != nil {
			return err
		}
		defer stop()
	} else {
		runtime.MemProfileRate = 0 // samples that nobody can ask for
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(context.Background(), listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-done:
		return c.end(server, events)
	}
}

// idleTime is how long a shim without tasks lives without being called. containerd calls a new one at once and ends one
// that has nothing left, unless it, or the program that starts shims, was killed meanwhile: then nobody knows of the shim.
// Connections alone are no calls: whoever looks for dead sockets makes one (package socket).
const idleTime = 30 * time.Second

// restTime is how long nobody has called when a shim gives memory back, and restPause the least time between two times:
// the kubelet asks for statistics every ten seconds.
const restTime, restPause = 2 * time.Second, time.Minute

// watched tells of every call.
func watched(w *idle.Watch, u *idle.Unused) ttrpc.UnaryServerInterceptor {
	return func(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, m ttrpc.Method) (any, error) {
		w.Called()
		defer u.Call()()
		return m(ctx, unmarshal)
	}
}

// inherited takes over the socket that start has made, once it listens.
func inherited() (net.Listener, error) {
	const fd = 3
	unix.CloseOnExec(fd)
	f := os.NewFile(fd, "shim socket")
	defer f.Close()
	const step, most = 200 * time.Microsecond, 5 * time.Second
	for waited := time.Duration(0); ; waited += step {
		listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if err != nil {
			return nil, fmt.Errorf("look at descriptor 3: %w", err)
		}
		if listens != 0 {
			break
		}
		if waited > most {
			return nil, errors.New("descriptor 3 does not listen: the start of the shim was broken off")
		}
		time.Sleep(step)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen at descriptor 3: %w", err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // end does that
	}
	return l, nil
}

// end sends what is left to send and removes the socket, so that the group's next container gets a new shim.
func (c *command) end(server *ttrpc.Server, events *shim.Publisher) error {
	var first error
	if c.Socket != "" {
		if err := unix.Unlink(c.Socket); err != nil && !errors.Is(err, unix.ENOENT) {
			first = fmt.Errorf("remove socket: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	// The answer to the call that ends the shim is still on its way, and ttrpc takes a connection for idle, and closes it,
	// while the first call on it is being answered: containerd then takes the end of a sandbox for a failure.
	time.Sleep(answerTime)
	if err := server.Shutdown(ctx); err != nil && first == nil {
		first = fmt.Errorf("end server: %w", err)
	}
	events.Close(ctx)
	return first
}

// handleSignals keeps the shim alive when its session ends, and prints all goroutines to the log on SIGUSR1, with -debug.
// Signals are caught, not ignored: what is ignored here would be ignored in every container.
func (c *command) handleSignals(logs *logger) {
	go func() {
		// Here, since each costs two switches of threads, and containerd's first call waits.
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, unix.SIGHUP, unix.SIGPIPE, unix.SIGINT, unix.SIGTERM, unix.SIGUSR1)
		for s := range signals {
			if s != unix.SIGUSR1 || !c.Debug {
				continue
			}
			const most = 1 << 20
			buf := make([]byte, most)
			logs.Debug(c.ID, "goroutines:\n"+string(buf[:runtime.Stack(buf, true)]))
		}
	}()
}
