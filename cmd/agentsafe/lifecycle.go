package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/container"
)

// createFlags are shared by create and run.
type createFlags struct {
	bundle, consoleSocket, pidfdSocket, pidFile string
	noPivot, noNewKeyring                       bool
	preserveFDs                                 int
}

func (f *createFlags) register(fs *flag.FlagSet) {
	for _, name := range []string{"b", "bundle"} {
		fs.StringVar(&f.bundle, name, "", "`directory` with config.json (default: the current one)")
	}
	fs.StringVar(&f.consoleSocket, "console-socket", "", "unix `socket` that receives the terminal")
	fs.StringVar(&f.pidfdSocket, "pidfd-socket", "", "unix `socket` that receives a pidfd of the first process")
	fs.StringVar(&f.pidFile, "pid-file", "", "`file` to write the pid to")
	fs.BoolVar(&f.noPivot, "no-pivot", false, "use chroot instead of pivot_root")
	fs.BoolVar(&f.noNewKeyring, "no-new-keyring", false, "keep the caller's session keyring")
	fs.IntVar(&f.preserveFDs, "preserve-fds", 0, "pass on `N` descriptors from 3 upwards")
}

func (f *createFlags) options(id string) (*container.CreateOptions, error) {
	o := &container.CreateOptions{
		ID: id, Bundle: f.bundle, PidFile: f.pidFile, NoPivot: f.noPivot, NoNewKeyring: f.noNewKeyring,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	var err error
	o.Activated = activated()
	if o.ExtraFiles, err = extraFiles(f.preserveFDs + o.Activated); err != nil {
		return nil, err
	}
	if f.consoleSocket != "" {
		if o.ConsoleSocket, err = dialUnix(f.consoleSocket); err != nil {
			return nil, fmt.Errorf("connect to console socket: %w", err)
		}
	}
	return o, nil
}

// activated is how many descriptors the caller hands over by socket activation: LISTEN_FDS, if LISTEN_PID says that it
// is meant for this process. Source: sd_listen_fds(3).
func activated() int {
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || n < 0 || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return n
}

// extraFiles are the caller's descriptors from 3 upwards.
func extraFiles(preserve int) ([]*os.File, error) {
	var out []*os.File
	for fd := 3; fd < 3+preserve; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			return nil, fmt.Errorf("preserve-fds: descriptor %d is not open", fd)
		}
		unix.CloseOnExec(fd)
		out = append(out, os.NewFile(uintptr(fd), "preserved"))
	}
	return out, nil
}

func dialUnix(path string) (*os.File, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.File()
}

// sendPidfd hands a pidfd to whoever listens at the socket.
func sendPidfd(socket string, pidfd *os.File) error {
	if socket == "" {
		return nil
	}
	conn, err := dialUnix(socket)
	if err != nil {
		return fmt.Errorf("connect to pidfd socket: %w", err)
	}
	defer conn.Close()
	if err := unix.Sendmsg(int(conn.Fd()), []byte("pidfd"), unix.UnixRights(int(pidfd.Fd())), nil, 0); err != nil {
		return fmt.Errorf("send pidfd: %w", err)
	}
	return nil
}

func (a *app) create(ctx context.Context, args []string) error {
	var f createFlags
	fs := newFlags("create", "ID")
	f.register(fs)
	id, err := parseID(fs, args)
	if err != nil {
		return err
	}
	if err := a.enter(id); err != nil {
		return err
	}
	rt, err := a.runtime()
	if err != nil {
		return err
	}
	o, err := f.options(id)
	if err != nil {
		return err
	}
	c, err := rt.Create(ctx, o)
	if err != nil {
		return err
	}
	if err := sendPidfd(f.pidfdSocket, c.Init().PidFD()); err != nil {
		return errors.Join(err, rt.Delete(ctx, id, true))
	}
	return nil
}

func (a *app) start(ctx context.Context, args []string) error {
	id, err := parseID(newFlags("start", "ID"), args)
	if err != nil {
		return err
	}
	if err := a.enter(id); err != nil {
		return err
	}
	c, err := a.load(id)
	if err != nil {
		return err
	}
	return c.Start(ctx)
}

func (a *app) kill(ctx context.Context, args []string) error {
	fs := newFlags("kill", "ID [SIGNAL]")
	all := fs.Bool("all", false, "signal every process of the container")
	fs.BoolVar(all, "a", false, "signal every process of the container")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() < 1 || fs.NArg() > 2 {
		return fmt.Errorf("kill takes a container id and a signal, not %d arguments", fs.NArg())
	}
	sig, err := parseSignal(fs.Arg(1))
	if err != nil {
		return err
	}
	c, err := a.load(fs.Arg(0))
	if err != nil {
		return err
	}
	return c.Kill(ctx, sig, *all)
}

func parseSignal(s string) (unix.Signal, error) {
	if s == "" {
		return unix.SIGTERM, nil
	}
	const maxSignal = 64
	if n, err := strconv.Atoi(s); err == nil {
		if n < 0 || n > maxSignal {
			return 0, fmt.Errorf("unknown signal %q", s)
		}
		return unix.Signal(n), nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("unknown signal %q", s)
}

func (a *app) delete(ctx context.Context, args []string) error {
	fs := newFlags("delete", "ID")
	force := fs.Bool("force", false, "end a running container first; clean up after a crash")
	fs.BoolVar(force, "f", false, "end a running container first; clean up after a crash")
	id, err := parseID(fs, args)
	if err != nil {
		return err
	}
	if err := a.enter(id); err != nil {
		return err
	}
	rt, err := a.runtime()
	if err != nil {
		return err
	}
	return rt.Delete(ctx, id, *force)
}

func (a *app) pause(_ context.Context, args []string) error {
	return a.control("pause", args, (*container.Container).Pause)
}

func (a *app) resume(_ context.Context, args []string) error {
	return a.control("resume", args, (*container.Container).Resume)
}

func (a *app) control(name string, args []string, f func(*container.Container) error) error {
	id, err := parseID(newFlags(name, "ID"), args)
	if err != nil {
		return err
	}
	c, err := a.load(id)
	if err != nil {
		return err
	}
	return f(c)
}

// load opens the runtime and finds a container; both stay open until the program ends.
func (a *app) load(id string) (*container.Container, error) {
	rt, err := a.runtime()
	if err != nil {
		return nil, err
	}
	return rt.Load(id)
}
