package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/ttrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
)

const unsupported = 3

// exitError is the status of a container's process.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	err := run(os.Args[1:])
	var status exitError
	switch {
	case err == nil:
	case errors.As(err, &status):
		os.Exit(int(status))
	default:
		fmt.Fprintln(os.Stderr, "byshim:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	global := flag.NewFlagSet("byshim", flag.ContinueOnError)
	root := global.String("root", "", "")
	profile := global.String("profile", "", "")
	if err := global.Parse(args); err != nil {
		return err
	}
	rest := global.Args()
	if len(rest) == 0 || *root == "" {
		return errors.New("want --root and a command")
	}
	if err := os.MkdirAll(*root, 0o700); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := &caller{ctx: ctx, root: *root, profile: *profile}
	commands := map[string]func([]string) error{
		"create": c.create, "start": c.start, "run": c.run, "exec": c.exec, "kill": c.kill, "delete": c.remove, "list": c.list,
	}
	command := commands[rest[0]]
	if command == nil {
		return exitError(unsupported)
	}
	return command(rest[1:])
}

// caller stands for containerd.
type caller struct {
	ctx           context.Context //nolint:containedctx // of the one call that this program makes
	root, profile string
	id, bundle    string
	task          task.TTRPCTaskService
}

// parse takes the flags that the attacks use, and the id.
func (c *caller) parse(name string, args []string, define func(*flag.FlagSet)) ([]string, error) {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	if define != nil {
		define(fs)
	}
	if err := fs.Parse(args); err != nil {
		return nil, exitError(unsupported)
	}
	if fs.NArg() == 0 {
		return nil, errors.New("want an id")
	}
	c.id = fs.Arg(0)
	return fs.Args()[1:], nil
}

func (c *caller) dir() string { return filepath.Join(c.root, c.id) }

// shim starts the shim program for an action, in the bundle.
func (c *caller) shim(action string) ([]byte, error) {
	program := os.Getenv("AGENTSAFE_TEST_SHIM")
	if c.profile != "" {
		link := filepath.Join(c.root, "containerd-shim-agentsafe-"+c.profile+"-v2")
		if err := os.Symlink(program, link); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		program = link
	}
	cmd := exec.Command(program, "-namespace", filepath.Base(filepath.Dir(c.root)), "-address", "/run/none.sock", "-publish-binary", "/bin/true", "-id", c.id, action)
	cmd.Dir, cmd.Env = c.bundle, append(os.Environ(), "TTRPC_ADDRESS=")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("shim %s: %w: %s", action, err, stderr.String())
	}
	return out, nil
}

// launch starts a shim and connects to it.
func (c *caller) launch() error {
	if err := os.Mkdir(c.dir(), 0o700); err != nil {
		return err
	}
	log := filepath.Join(c.bundle, "log")
	if err := unix.Mkfifo(log, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	out, err := c.shim("start")
	if err != nil {
		return errors.Join(err, os.RemoveAll(c.dir()))
	}
	for name, text := range map[string]string{"socket": strings.TrimPrefix(string(out), "unix://"), "bundle": c.bundle} {
		if err := os.WriteFile(filepath.Join(c.dir(), name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return c.connect()
}

// connect finds the shim of a container.
func (c *caller) connect() error {
	read := func(name string) string {
		data, _ := os.ReadFile(filepath.Join(c.dir(), name)) // absent: no such container, which the dial tells
		return string(data)
	}
	c.bundle = read("bundle")
	conn, err := net.Dial("unix", read("socket"))
	if err != nil {
		return fmt.Errorf("container %q does not exist: %w", c.id, err)
	}
	c.task = task.NewTTRPCTaskClient(ttrpc.NewClient(conn))
	return nil
}

// output is where a process writes: files, which the shim copies to.
func (c *caller) output(name string) (stdout, stderr string) {
	at := func(stream string) string { return "file://" + filepath.Join(c.dir(), name+"-"+stream) }
	return at("out"), at("err")
}

// show copies what a process has written to this one's own output.
func (c *caller) show(name string) {
	for stream, to := range map[string]*os.File{"out": os.Stdout, "err": os.Stderr} {
		if f, err := os.Open(filepath.Join(c.dir(), name+"-"+stream)); err == nil {
			io.Copy(to, f) //nolint:errcheck // what is missing the test will miss
			f.Close()
		}
	}
}

func (c *caller) makeTask(args []string) error {
	if _, err := c.parse("create", args, func(fs *flag.FlagSet) { fs.StringVar(&c.bundle, "bundle", "", "") }); err != nil {
		return err
	}
	if err := c.launch(); err != nil {
		return err
	}
	stdout, stderr := c.output("init")
	if _, err := c.task.Create(c.ctx, &task.CreateTaskRequest{ID: c.id, Bundle: c.bundle, Stdout: stdout, Stderr: stderr}); err != nil {
		return errors.Join(err, c.end())
	}
	return nil
}

func (c *caller) create(args []string) error { return c.makeTask(args) }

func (c *caller) start(args []string) error {
	if _, err := c.parse("start", args, nil); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	_, err := c.task.Start(c.ctx, &task.StartRequest{ID: c.id})
	return err
}

func (c *caller) run(args []string) error {
	if err := c.makeTask(args); err != nil {
		return err
	}
	if _, err := c.task.Start(c.ctx, &task.StartRequest{ID: c.id}); err != nil {
		c.task.Delete(c.ctx, &task.DeleteRequest{ID: c.id}) //nolint:errcheck // what it leaves, end finds
		return errors.Join(err, c.end())
	}
	r, err := c.task.Wait(c.ctx, &task.WaitRequest{ID: c.id})
	if err != nil {
		return errors.Join(err, c.end())
	}
	_, err = c.task.Delete(c.ctx, &task.DeleteRequest{ID: c.id})
	c.show("init")
	if err := errors.Join(err, c.end()); err != nil || r.ExitStatus == 0 {
		return err
	}
	return exitError(r.ExitStatus)
}

// exec runs a further process of the bundle's own kind.
func (c *caller) exec(args []string) error {
	var cwd string
	var caps []string
	command, err := c.parse("exec", args, func(fs *flag.FlagSet) {
		fs.StringVar(&cwd, "cwd", "", "")
		fs.Func("cap", "", func(v string) error { caps = append(caps, v); return nil })
	})
	if err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(c.bundle, "config.json"))
	if err != nil {
		return err
	}
	var s specs.Spec
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	p := s.Process
	p.Args = command
	if cwd != "" {
		p.Cwd = cwd
	}
	for _, set := range []*[]string{&p.Capabilities.Bounding, &p.Capabilities.Effective, &p.Capabilities.Permitted} {
		*set = append(*set, caps...)
	}
	if data, err = json.Marshal(p); err != nil {
		return err
	}
	id := fmt.Sprintf("exec-%d", os.Getpid())
	stdout, stderr := c.output(id)
	spec := &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: data}
	if _, err := c.task.Exec(c.ctx, &task.ExecProcessRequest{ID: c.id, ExecID: id, Spec: spec, Stdout: stdout, Stderr: stderr}); err != nil {
		return err
	}
	if _, err := c.task.Start(c.ctx, &task.StartRequest{ID: c.id, ExecID: id}); err != nil {
		_, derr := c.task.Delete(c.ctx, &task.DeleteRequest{ID: c.id, ExecID: id})
		return errors.Join(err, derr)
	}
	r, err := c.task.Wait(c.ctx, &task.WaitRequest{ID: c.id, ExecID: id})
	if err != nil {
		return err
	}
	if _, err := c.task.Delete(c.ctx, &task.DeleteRequest{ID: c.id, ExecID: id}); err != nil {
		return err
	}
	c.show(id)
	if r.ExitStatus != 0 {
		return exitError(r.ExitStatus)
	}
	return nil
}

func (c *caller) kill(args []string) error {
	if _, err := c.parse("kill", args, nil); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	_, err := c.task.Kill(c.ctx, &task.KillRequest{ID: c.id, Signal: uint32(unix.SIGKILL)})
	return err
}

func (c *caller) remove(args []string) error {
	if _, err := c.parse("delete", args, func(fs *flag.FlagSet) { fs.Bool("force", false, "") }); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return os.RemoveAll(c.dir())
	}
	if _, err := c.task.Kill(c.ctx, &task.KillRequest{ID: c.id, Signal: uint32(unix.SIGKILL), All: true}); err == nil {
		c.task.Wait(c.ctx, &task.WaitRequest{ID: c.id}) //nolint:errcheck // the next call tells
	}
	c.task.Delete(c.ctx, &task.DeleteRequest{ID: c.id}) //nolint:errcheck // it may have been deleted
	return c.end()
}

// end lets go of the shim.
func (c *caller) end() error {
	c.task.Shutdown(c.ctx, &task.ShutdownRequest{ID: c.id}) //nolint:errcheck // it may have ended
	_, err := c.shim("delete")
	return errors.Join(err, os.RemoveAll(c.dir()))
}

func (c *caller) list([]string) error {
	entries, err := os.ReadDir(c.root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			fmt.Println(e.Name())
		}
	}
	return nil
}
