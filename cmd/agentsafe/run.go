package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/container"
)

// runContainer is the command run: create, start, wait, delete.
func (a *app) runContainer(ctx context.Context, args []string) error {
	var f createFlags
	fs := newFlags("run", "ID")
	f.register(fs)
	detach := fs.Bool("detach", false, "return once the container runs")
	fs.BoolVar(detach, "d", false, "return once the container runs")
	keep := fs.Bool("keep", false, "do not delete the container when it has ended")
	fs.Bool("no-subreaper", false, "ignored: orphans are the container's own")
	id, err := parseID(fs, args)
	if err != nil {
		return err
	}
	if err := a.enter(id); err != nil {
		return err
	}
	var arriving *signals
	if !*detach {
		arriving = collectSignals()
	}
	rt, err := a.runtime()
	if err != nil {
		return err
	}
	o, err := f.options(id)
	if err != nil {
		return err
	}
	var term *terminal
	if !*detach {
		if term, err = openTerminal(o); err != nil {
			return err
		}
		defer term.close()
		<-arriving.collecting
	}
	o.Attached = !*detach
	c, err := rt.Create(ctx, o)
	if err != nil {
		return err
	}
	err = func() error {
		if err := sendPidfd(f.pidfdSocket, c.Init().PidFD()); err != nil {
			return err
		}
		if err := c.Start(ctx); err != nil {
			return err
		}
		return c.WritePidFile(f.pidFile)
	}()
	if err != nil {
		return errors.Join(err, c.Delete(ctx))
	}
	if *detach {
		return nil
	}
	status, err := supervise(c.Init(), arriving, term)
	if !*keep {
		if derr := c.Delete(ctx); derr != nil {
			err = errors.Join(err, derr)
		}
	}
	if err != nil {
		return err
	}
	return statusError(status)
}

func statusError(status int) error {
	if status == 0 {
		return nil
	}
	return &exitError{status}
}

// signals are those that arrived for the container's process.
type signals struct {
	arrived chan os.Signal
	// collecting is closed when they are kept. That must be before the process exists, so that none is lost.
	collecting chan struct{}
}

// collectSignals starts to collect signals, beside the caller's work: each costs the Go runtime two switches of threads,
// 2.5 ms for all of them, as much as a tenth of a whole run. So those that people and engines send come first, and the
// rest when the process has shown that it stays; until then these do what they do to any program.
func collectSignals() *signals {
	s := &signals{arrived: make(chan os.Signal, 64), collecting: make(chan struct{})}
	go func() {
		signal.Notify(s.arrived, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH)
		close(s.collecting)
	}()
	time.AfterFunc(50*time.Millisecond, func() { signal.Notify(s.arrived) })
	return s
}

// supervise forwards signals and the terminal until the process ends.
func supervise(p *container.Process, in *signals, term *terminal) (int, error) {
	type result struct {
		status int
		err    error
	}
	done := make(chan result, 1)
	if err := term.attach(); err != nil {
		return 0, err
	}
	go func() {
		status, err := p.Wait()
		done <- result{status, err}
	}()
	for {
		select {
		case r := <-done:
			term.drain()
			return r.status, r.err
		case s := <-in.arrived:
			sig, ok := s.(unix.Signal)
			switch {
			case !ok || sig == unix.SIGCHLD || sig == unix.SIGURG || sig == unix.SIGPIPE:
				// SIGURG is the Go runtime's own preemption signal.
			case sig == unix.SIGWINCH:
				term.resize()
			default:
				p.Signal(sig) //nolint:errcheck // it may have ended meanwhile
			}
		}
	}
}

// execError marks failures of exec itself, whose status is 255.
type execError struct{ err error }

func (e *execError) Error() string { return e.err.Error() }
func (e *execError) Unwrap() error { return e.err }

type execFlags struct {
	processFile, consoleSocket, pidfdSocket, pidFile, cwd, user, label, apparmor string
	env, groups, caps, cgroups                                                   []string
	tty, detach, noNewPrivs, ignorePaused                                        bool
	preserveFDs                                                                  int
}

// exec runs a further process in a container.
func (a *app) exec(ctx context.Context, args []string) error {
	var f execFlags
	fs := newFlags("exec", "ID [COMMAND ...]")
	list := func(into *[]string) func(string) error {
		return func(v string) error {
			*into = append(*into, v)
			return nil
		}
	}
	for _, n := range []string{"process", "p"} {
		fs.StringVar(&f.processFile, n, "", "process.json `file`")
	}
	for _, n := range []string{"user", "u"} {
		fs.StringVar(&f.user, n, "", "`uid[:gid]`, numeric")
	}
	for _, n := range []string{"env", "e"} {
		fs.Func(n, "`NAME=VALUE`, repeatable", list(&f.env))
	}
	for _, n := range []string{"additional-gids", "g"} {
		fs.Func(n, "additional `gid`, repeatable", list(&f.groups))
	}
	for _, n := range []string{"cap", "c"} {
		fs.Func(n, "`capability` to add, repeatable", list(&f.caps))
	}
	for _, n := range []string{"tty", "t"} {
		fs.BoolVar(&f.tty, n, false, "allocate a terminal")
	}
	for _, n := range []string{"detach", "d"} {
		fs.BoolVar(&f.detach, n, false, "return once the process runs")
	}
	fs.StringVar(&f.consoleSocket, "console-socket", "", "unix `socket` that receives the terminal")
	fs.StringVar(&f.pidfdSocket, "pidfd-socket", "", "unix `socket` that receives a pidfd")
	fs.StringVar(&f.pidFile, "pid-file", "", "`file` to write the pid to")
	fs.StringVar(&f.cwd, "cwd", "", "working `directory` in the container")
	fs.StringVar(&f.label, "process-label", "", "SELinux `label`")
	fs.StringVar(&f.apparmor, "apparmor", "", "AppArmor `profile`")
	fs.Func("cgroup", "sub-cgroup `[controller,...:]path` to run in, repeatable for cgroup v1", list(&f.cgroups))
	fs.BoolVar(&f.noNewPrivs, "no-new-privs", false, "set no_new_privs")
	fs.BoolVar(&f.ignorePaused, "ignore-paused", false, "also if the container is paused")
	fs.IntVar(&f.preserveFDs, "preserve-fds", 0, "pass on `N` descriptors from 3 upwards")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() < 1 {
		return &execError{errors.New("exec takes a container id")}
	}
	if err := a.enter(fs.Arg(0)); err != nil {
		return &execError{err}
	}
	status, err := a.execProcess(ctx, &f, fs.Arg(0), fs.Args()[1:])
	if err != nil {
		return &execError{err}
	}
	return statusError(status)
}

func (a *app) execProcess(ctx context.Context, f *execFlags, id string, args []string) (int, error) {
	var arriving *signals
	if !f.detach {
		arriving = collectSignals()
	}
	c, err := a.load(id)
	if err != nil {
		return 0, err
	}
	process, err := f.process(c, args)
	if err != nil {
		return 0, err
	}
	o := &container.ExecOptions{
		Process: process, PidFile: f.pidFile, IgnorePaused: f.ignorePaused, Detached: f.detach,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	if n := activated(); n > 0 {
		f.preserveFDs += n
		process.Env = append(process.Env, container.ActivationEnv(n)...)
	}
	if o.ExtraFiles, err = extraFiles(f.preserveFDs); err != nil {
		return 0, err
	}
	if o.Cgroups, err = parseCgroups(f.cgroups); err != nil {
		return 0, err
	}
	var term *terminal
	switch {
	case f.consoleSocket != "":
		if o.ConsoleSocket, err = dialUnix(f.consoleSocket); err != nil {
			return 0, fmt.Errorf("connect to console socket: %w", err)
		}
	case process.Terminal && f.detach:
		return 0, errors.New("a detached terminal needs --console-socket")
	case process.Terminal:
		if term, err = newTerminal(); err != nil {
			return 0, err
		}
		defer term.close()
		o.ConsoleSocket = term.childEnd
	}
	if !f.detach {
		<-arriving.collecting
	}
	p, err := c.Exec(ctx, o)
	if err != nil {
		return 0, err
	}
	if err := sendPidfd(f.pidfdSocket, p.PidFD()); err != nil {
		return 0, err
	}
	if f.detach {
		return 0, nil
	}
	return supervise(p, arriving, term)
}

// parseCgroups parses --cgroup: a path for all controllers, or one for those before the colon.
func parseCgroups(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, v := range list {
		controllers, path, some := strings.Cut(v, ":")
		if !some {
			controllers, path = "", v
		}
		for c := range strings.SplitSeq(controllers, ",") {
			if _, twice := out[c]; twice {
				return nil, fmt.Errorf("--cgroup %q: there is a path for %q already", v, c)
			}
			out[c] = path
		}
	}
	return out, nil
}

// process builds the process to execute: from the file, or from the container's own process and the flags.
func (f *execFlags) process(c *container.Container, args []string) (*specs.Process, error) {
	var p specs.Process
	if f.processFile != "" {
		if err := readJSONFile(f.processFile, &p); err != nil {
			return nil, err
		}
		return &p, nil
	}
	if len(args) == 0 {
		return nil, errors.New("exec takes a command or --process")
	}
	own, err := c.Process()
	if err != nil {
		return nil, err
	}
	p = *own
	p.Args, p.Terminal, p.ConsoleSize = args, f.tty, nil
	p.Env = append(append([]string(nil), p.Env...), f.env...)
	if f.cwd != "" {
		p.Cwd = f.cwd
	}
	if f.noNewPrivs {
		p.NoNewPrivileges = true
	}
	if f.apparmor != "" {
		p.ApparmorProfile = f.apparmor
	}
	if f.label != "" {
		p.SelinuxLabel = f.label
	}
	if len(f.caps) > 0 {
		p.Capabilities = withCapabilities(p.Capabilities, f.caps)
	}
	if err := f.setUser(&p); err != nil {
		return nil, err
	}
	return &p, nil
}

func withCapabilities(in *specs.LinuxCapabilities, add []string) *specs.LinuxCapabilities {
	out := specs.LinuxCapabilities{}
	if in != nil {
		out = *in
	}
	for _, set := range []*[]string{&out.Bounding, &out.Effective, &out.Permitted} {
		*set = append(append([]string(nil), *set...), add...)
	}
	return &out
}

// setUser takes numbers only: a name could be one that the image has chosen to look like a number (CVE-2016-3697).
func (f *execFlags) setUser(p *specs.Process) error {
	const bits = 32
	if f.user != "" {
		uid, gid, hasGID := strings.Cut(f.user, ":")
		n, err := strconv.ParseUint(uid, 10, bits)
		if err != nil || n == 1<<bits-1 {
			return fmt.Errorf("--user %q: want a numeric uid[:gid]", f.user)
		}
		p.User.UID = uint32(n)
		if hasGID {
			if n, err = strconv.ParseUint(gid, 10, bits); err != nil || n == 1<<bits-1 {
				return fmt.Errorf("--user %q: want a numeric uid[:gid]", f.user)
			}
			p.User.GID = uint32(n)
		}
	}
	for _, g := range f.groups {
		n, err := strconv.ParseUint(g, 10, bits)
		if err != nil || n == 1<<bits-1 {
			return fmt.Errorf("--additional-gids %q: want a number", g)
		}
		p.User.AdditionalGids = append(p.User.AdditionalGids, uint32(n))
	}
	return nil
}

// maxJSONBytes bounds config.json and process.json.
const maxJSONBytes = 16 << 20

// readJSONFile reads a file that may be a FIFO without a writer, a device or endless (TestAttack_HostileConfig).
func readJSONFile(name string, into any) error {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxJSONBytes+1))
	if err != nil {
		return err
	}
	if len(data) > maxJSONBytes {
		return fmt.Errorf("%s: more than %d bytes", name, maxJSONBytes)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
