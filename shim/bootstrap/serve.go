package bootstrap

import (
	"context"
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
)

// flushTime bounds how long the last events are tried when the shim ends.
const flushTime = 10 * time.Second

// serve is the shim itself: it answers at descriptor 3 until its last task is gone.
func (c *command) serve() error {
	// Memory that is given back early costs a shim little and a host with many of them much.
	const gcPercent = 40
	debug.SetGCPercent(gcPercent)
	logs, err := openLog(c.debug)
	if err != nil {
		return err
	}
	listener, err := inherited()
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()))
	if err != nil {
		return fmt.Errorf("create server: %w", err)
	}
	events := shim.NewPublisher(c.ttrpc, c.namespace, func(m string) { logs.Warn("", m) })
	done := make(chan struct{})
	boxes := &runtimes{namespace: c.namespace, warn: func(m string) { logs.Debug(c.id, m) }}
	service := shim.New(shim.Config{
		Namespace: c.namespace, Publisher: events, Open: boxes.get, Profile: c.profile, Log: logs,
		Shutdown: func() { close(done) },
	})
	service.Register(server)
	c.handleSignals(logs)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(context.Background(), listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-done:
	}
	return c.end(server, events)
}

// inherited takes over the socket that start has made.
func inherited() (net.Listener, error) {
	const fd = 3
	unix.CloseOnExec(fd)
	f := os.NewFile(fd, "shim socket")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen at descriptor 3: %w", err)
	}
	return l, nil
}

// end sends what is left to send and removes the socket, so that the group's next container gets a new shim.
func (c *command) end(server *ttrpc.Server, events *shim.Publisher) error {
	var first error
	if c.socket != "" {
		if err := unix.Unlink(c.socket); err != nil && !errors.Is(err, unix.ENOENT) {
			first = fmt.Errorf("remove socket: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	// The answer to the call that ends the shim is still on its way.
	if err := server.Shutdown(ctx); err != nil && first == nil {
		first = fmt.Errorf("end server: %w", err)
	}
	events.Close(ctx)
	return first
}

// handleSignals keeps the shim alive when its session ends, and prints all goroutines to the log on SIGUSR1, with -debug.
// Signals are caught, not ignored: what is ignored here would be ignored in every container.
func (c *command) handleSignals(logs *logger) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGHUP, unix.SIGPIPE, unix.SIGINT, unix.SIGTERM, unix.SIGUSR1)
	go func() {
		for s := range signals {
			if s != unix.SIGUSR1 || !c.debug {
				continue
			}
			const most = 1 << 20
			buf := make([]byte, most)
			logs.Debug(c.id, "goroutines:\n"+string(buf[:runtime.Stack(buf, true)]))
		}
	}()
}
