package container

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// How long the monitor may take: to start, to answer, and to finish (a commit of a transaction, a signature).
const (
	launchTimeout = 20 * time.Second
	callTimeout   = 20 * time.Second
	closeTimeout  = 2 * time.Minute
)

// monitor is the monitor program that this process has started.
type monitor struct {
	process  *program
	conn     *net.UnixConn
	launched bool
}

// startMonitor starts the monitor program, beside the rest of create; it does nothing until it is launched, and ends if
// this process does before.
func (r *Runtime) startMonitor() (*monitor, error) {
	if r.opts.Monitor == "" {
		return nil, errors.New("no program is configured for it")
	}
	ours, theirs, err := packetPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer null.Close()
	// A session of its own: a signal to the engine's or the terminal's process group is not for it. Nothing of the
	// caller's environment, descriptors or directory is kept, so that it holds nothing busy.
	process, err := startProgram(r.opts.Monitor, []string{r.opts.Monitor}, []string{"GOMAXPROCS=2", "GOGC=25"},
		[]*os.File{theirs, null, null}, &syscall.SysProcAttr{Setsid: true}, nil)
	if err != nil {
		ours.Close()
		return nil, err
	}
	return &monitor{process: process, conn: ours}, nil
}

func packetPair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create socket: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "monitor")
	f := os.NewFile(uintptr(fds[0]), "monitor")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("create socket: %w", err)
	}
	return conn.(*net.UnixConn), theirs, nil //nolint:forcetypeassert // a unix socket it is
}

func (m *monitor) pid() int { return m.process.pid }

// stop ends the monitor of a creation that has failed.
func (m *monitor) stop() {
	m.conn.Close()
	m.process.kill()
	if !m.launched {
		m.process.wait()
	}
}

// launch puts the monitor in charge of the container. Once it has answered, the socket accepts.
func (m *monitor) launch(cr *creation) error {
	socket, err := ListenSupervisor(cr.c)
	if err != nil {
		return err
	}
	defer socket.Close()
	r := &wire.Request{Op: wire.OpLaunch, Launch: &wire.Launch{
		Root: cr.rt.opts.Root, ID: cr.o.ID, Systemd: cr.rt.opts.SystemdCgroup,
	}}
	files := []*os.File{socket}
	if cr.o.Stderr != nil && !cr.spec.Process.Terminal {
		files = append(files, cr.o.Stderr)
	}
	if err := wire.Call(m.conn, launchTimeout, r, files...); err != nil {
		return fmt.Errorf("launch the container's monitor: %w", err)
	}
	m.launched = true
	m.conn.Close()
	go m.process.wait() // a creator that stays must not keep a zombie
	return nil
}

// ListenSupervisor makes the socket on which the supervisor of a container is spoken to. The caller closes it.
func ListenSupervisor(c *Container) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("create supervisor's socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), wire.Socket)
	// By the directory's handle: a path may be longer than a socket's address.
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: c.socketPath()})
	if err == nil {
		const backlog = 64
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("create supervisor's socket: %w", err)
	}
	return f, nil
}

func (c *Container) socketPath() string {
	return "/proc/self/fd/" + strconv.Itoa(int(c.dir.Fd())) + "/" + wire.Socket
}

// RecordEvidence asks the supervisor of a container that runs, in another process, for a line in its evidence. data is
// JSON.
func (c *Container) RecordEvidence(kind string, data []byte) error {
	m, err := c.dialMonitor()
	if err != nil {
		return fmt.Errorf("supervisor of container %q: %w", c.id, err)
	}
	defer m.conn.Close()
	return wire.Call(m.conn, callTimeout, &wire.Request{Op: wire.OpRecord, Record: &wire.Record{Type: kind, Data: data}})
}

// monitorClient speaks to the supervisor of a container in another process.
type monitorClient struct {
	c    *Container
	conn *net.UnixConn
}

func (c *Container) dialMonitor() (*monitorClient, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: c.socketPath(), Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return &monitorClient{c, conn}, nil
}

// Begin implements Supervisor.
func (m *monitorClient) Begin() error {
	return wire.Call(m.conn, callTimeout, &wire.Request{Op: wire.OpBegin})
}

// Exec implements Supervisor.
func (m *monitorClient) Exec(e *wire.Exec, pidfd *os.File) error {
	return wire.Call(m.conn, callTimeout, &wire.Request{Op: wire.OpExec, Exec: e}, pidfd)
}

// Transact implements Supervisor.
func (m *monitorClient) Transact(r *wire.Transact) (int, *os.File, error) {
	reply, files, err := wire.AskFiles(m.conn, closeTimeout, &wire.Request{Op: wire.OpTransact, Transact: r})
	if err != nil {
		return 0, nil, err
	}
	if len(files) != 1 {
		closeFiles(files)
		return 0, nil, fmt.Errorf("the supervisor answers with %d descriptors, want one: %w", len(files), unix.EPROTO)
	}
	return reply.Transaction, files[0], nil
}

// Abandon implements Supervisor.
func (m *monitorClient) Abandon(n int) error {
	return wire.Call(m.conn, callTimeout, &wire.Request{Op: wire.OpAbandon, Abandon: n})
}

// Exited implements Supervisor.
func (m *monitorClient) Exited(pid, status int) bool {
	r := &wire.Request{Op: wire.OpExited, Exited: &wire.Exited{PID: pid, Status: status}}
	reply, err := wire.Ask(m.conn, closeTimeout, r)
	if err != nil {
		m.c.rt.opts.Warn(fmt.Sprintf("report exit to the supervisor: %v", err))
		return false
	}
	return reply.TimedOut
}

// Pump implements Supervisor.
func (m *monitorClient) Pump(pid int, outs []Output) error {
	r := &wire.Request{Op: wire.OpPump, Pump: &wire.Pump{PID: pid}}
	var files []*os.File
	for i := range outs {
		r.Pump.Names = append(r.Pump.Names, outs[i].Name)
		files = append(files, outs[i].From, outs[i].To)
	}
	return wire.Call(m.conn, callTimeout, r, files...)
}

// Refusals implements Supervisor.
func (m *monitorClient) Refusals(since uint64, branch string) (*wire.Refusals, error) {
	reply, err := wire.Ask(m.conn, callTimeout, &wire.Request{Op: wire.OpRefusals, Since: since, Branch: branch})
	if err != nil {
		return nil, err
	}
	if reply.Refusals == nil {
		return &wire.Refusals{}, nil
	}
	return reply.Refusals, nil
}

// Close implements Supervisor. It returns when the monitor has ended.
func (m *monitorClient) Close(ctx context.Context) error {
	pidfd, err := m.c.monitorPidFD()
	if err != nil {
		return err
	}
	err = wire.Call(m.conn, closeTimeout, &wire.Request{Op: wire.OpClose})
	m.conn.Close()
	m.c.supervisor = nil
	if pidfd != nil {
		defer pidfd.Close()
		if err == nil {
			ctx, cancel := context.WithTimeoutCause(ctx, killTimeout, errors.New("the monitor does not end"))
			defer cancel()
			err = waitExit(ctx, pidfd)
		}
	}
	if err != nil {
		return fmt.Errorf("close supervisor of container %q: %w", m.c.id, err)
	}
	return nil
}

// monitorPidFD opens the monitor program; nil if the supervisor is no program of its own.
func (c *Container) monitorPidFD() (*os.File, error) {
	if !c.state.Monitored {
		return nil, nil //nolint:nilnil // there is none
	}
	fd, err := unix.PidfdOpen(c.state.SupervisorPID, 0)
	if err != nil {
		return nil, fmt.Errorf("open monitor of container %q: %w", c.id, err)
	}
	f := os.NewFile(uintptr(fd), "monitor")
	if ticks, _, err := startTime(c.state.SupervisorPID); err != nil || ticks != c.state.SupervisorStart {
		f.Close()
		return nil, fmt.Errorf("monitor of container %q: %w", c.id, unix.ESRCH)
	}
	return f, nil
}

// killMonitor ends a monitor that does not finish.
func (c *Container) killMonitor() {
	if f, err := c.monitorPidFD(); err == nil && f != nil {
		unix.PidfdSendSignal(int(f.Fd()), unix.SIGKILL, nil, 0) //nolint:errcheck // gone is what we want
		f.Close()
	}
}
