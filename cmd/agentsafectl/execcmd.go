package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
	"github.com/agentsafe/agentsafe/cmd/agentsafectl/ps"
	"github.com/agentsafe/agentsafe/cmd/agentsafectl/task"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// execFlags are the flags of exec.
type execFlags struct {
	paths     *paths
	json      bool
	timeout   time.Duration
	maxOutput string
	stdin     bool
	cwd, user string
	env       []string
}

func newExecCommand(p *paths) *cobra.Command {
	f := &execFlags{paths: p}
	c := &cobra.Command{
		Use:   "exec [flags] ID -- COMMAND [ARG...]",
		Short: "Run a command in a running container, of any engine, and say what it did",
		Long: `Run a command in a running container, whichever engine has made it, and print
what it wrote, or with --json one object: output, exit status, time, changed
files, refusals. It is what a tool call through agentsafectl mcp does, for a
harness without MCP.

The exit status is the command's; 128+N if signal N ended it, 124 after a
time-out, 125 if agentsafectl failed, 126 if the command can't be executed, 127
if it does not exist. With --json the object has an "error" in the last three
cases. --timeout ends the command with all its descendants, and nothing else.`,
		Example: `  agentsafectl exec --json --timeout 30s agent -- make test
  docker ps --quiet --no-trunc | xargs -I ID agentsafectl exec ID -- uptime`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return f.run(c.Context(), c.OutOrStdout(), args[0], args[1:])
		},
	}
	flags := c.Flags()
	flags.SetInterspersed(false)
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	flags.DurationVar(&f.timeout, "timeout", 0, "end the command with its descendants after this `time`")
	flags.StringVar(&f.maxOutput, "max-output", "1m", "keep so much of each stream, in `bytes` or with k, m; more is counted")
	flags.BoolVarP(&f.stdin, "stdin", "i", false, "pass standard input on (at most 16 MiB)")
	flags.StringVar(&f.cwd, "cwd", "", "working `directory` in the container (default: that of its first process)")
	flags.StringVar(&f.user, "user", "", "run as `uid[:gid]` (default: as its first process)")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "set `NAME=VALUE`, or pass NAME on from this environment")
	return c
}

// execReport is what --json prints.
type execReport struct {
	ID      string   `json:"id"`
	Profile string   `json:"profile"`
	Command []string `json:"command"`
	*call.Result
	Error string `json:"error,omitempty"`
}

func (f *execFlags) run(ctx context.Context, out io.Writer, id string, args []string) error {
	if args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return errors.New("exec takes a container and a command")
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	report := &execReport{ID: id, Command: args}
	result, err := f.exec(ctx, report)
	report.Result = result
	var status int
	switch {
	case err == nil && result.TimedOut:
		status = exitTimeout
	case err == nil:
		status = result.ExitCode
	default:
		status = exitCode(err)
		if _, ok := errors.AsType[*call.CommandError](err); ok {
			status = exitCode(&startError{err})
		}
		report.Error = err.Error()
	}
	if f.json {
		if report.Result == nil {
			report.Result = &call.Result{ExitCode: status}
		}
		enc := json.NewEncoder(out)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(report); err != nil {
			return fmt.Errorf("write result: %w", err)
		}
		return quietStatus(status)
	}
	if err != nil {
		return &exitError{code: status, err: err}
	}
	_, oerr := io.WriteString(out, result.Stdout)
	_, eerr := io.WriteString(os.Stderr, result.Stderr)
	for _, d := range result.Denials {
		fmt.Fprintln(os.Stderr, "agentsafectl: refused:", d)
	}
	if result.TimedOut {
		fmt.Fprintf(os.Stderr, "agentsafectl: the command ran longer than it may and was ended with its descendants\n")
	}
	if err := errors.Join(oerr, eerr); err != nil {
		return err
	}
	return quietStatus(status)
}

func quietStatus(status int) error {
	if status == 0 {
		return nil
	}
	return &exitError{code: status}
}

// exec runs the command.
func (f *execFlags) exec(ctx context.Context, report *execReport) (*call.Result, error) {
	if os.Geteuid() != 0 {
		_, full, err := findContainer(f.paths, report.ID)
		if err == nil {
			err = f.paths.asRoot(full)
		}
		return nil, err
	}
	maxOutput, err := parseBytes(f.maxOutput)
	if err != nil {
		return nil, fmt.Errorf("--max-output: %w", err)
	}
	if f.timeout < 0 || maxOutput > maxCaptureBytes {
		return nil, fmt.Errorf("--timeout is negative, or --max-output above %d", maxCaptureBytes)
	}
	// Whoever is in the container must not ptrace or read the process that joins it (CVE-2016-9962).
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("set undumpable: %w", err)
	}
	rt, c, err := openContainer(f.paths, report.ID)
	if err != nil {
		return nil, err
	}
	defer rt.Close()
	defer c.Close()
	report.ID, report.Profile = c.ID(), c.State().Profile
	process, err := f.process(c, report.Command)
	if err != nil {
		return nil, err
	}
	r := &call.Request{ID: "exec-" + strings.TrimPrefix(newID(), "run-"), Process: process, Timeout: f.timeout, MaxOutput: int(maxOutput)}
	if f.stdin {
		data, err := io.ReadAll(io.LimitReader(os.Stdin, maxCaptureBytes+1))
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		if len(data) > maxCaptureBytes {
			return nil, fmt.Errorf("standard input has more than %d bytes", maxCaptureBytes)
		}
		r.Stdin = string(data)
	}
	uid, gid := c.OwnerOf(process.User)
	return call.Run(ctx, c, r, uid, gid, nil)
}

// process is what to run: the container's first process but for what was asked.
func (f *execFlags) process(c *container.Container, args []string) (*specs.Process, error) {
	if strings.ContainsRune(strings.Join(args, ""), 0) {
		return nil, errors.New("command: has a zero byte")
	}
	process, err := call.NewProcess(c, args, f.cwd)
	if err != nil {
		return nil, err
	}
	env, err := environment(f.env, os.LookupEnv)
	if err != nil {
		return nil, fmt.Errorf("--env: %w", err)
	}
	process.Env = append(slices.Clip(process.Env), env...)
	if f.user != "" {
		u, err := task.UserByID(f.user, nil)
		if err != nil {
			return nil, fmt.Errorf("--user: %w", err)
		}
		process.User = specs.User{UID: u.UID, GID: u.GID}
	}
	return process, nil
}

// openContainer finds a container by its id, or the beginning of one, in the state directory that the caller named and
// in those of the engines. The caller closes both.
func openContainer(p *paths, id string) (*container.Runtime, *container.Container, error) {
	root, full, err := findContainer(p, id)
	if err != nil {
		return nil, nil, err
	}
	rt, err := container.Open(container.Options{Root: root, Warn: func(m string) { fmt.Fprintln(os.Stderr, "agentsafectl: note:", call.Visible(m)) }})
	if err != nil {
		return nil, nil, err
	}
	c, err := rt.Load(full)
	if err != nil {
		rt.Close()
		return nil, nil, err
	}
	return rt, c, nil
}

func findContainer(p *paths, id string) (root, full string, err error) {
	if err := container.ValidateID(id); err != nil {
		return "", "", err
	}
	list, err := ps.Find([]string{p.state})
	if err != nil {
		return "", "", err
	}
	for _, e := range list {
		switch {
		case e.ID == id:
			return e.Root, e.ID, nil
		case strings.HasPrefix(e.ID, id) && full != "":
			return "", "", fmt.Errorf("%q is the beginning of several containers' ids: write more of it (agentsafectl ps lists them)", id)
		case strings.HasPrefix(e.ID, id):
			root, full = e.Root, e.ID
		}
	}
	if full == "" {
		return "", "", fmt.Errorf("container %q: %w (agentsafectl ps lists them; an engine's name for it is not its id)", id, container.ErrNotExist)
	}
	return root, full, nil
}
