package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/task"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/rootless"
)

// defaultPIDs is the limit of processes of a run for which nobody chose one.
const defaultPIDs = 4096

// runFlags are the flags of run.
type runFlags struct {
	id, profile, user        string
	rootfs, image, imageName string
	workspace                string
	// worktree is the branch of a git worktree for this run; "" for none. keepTree leaves its folder when the layers go.
	worktree string
	keepTree bool
	tree     *container.Worktree // the worktree, once it was made
	// common is a git directory that is bound beside the workspace.
	common         string
	commonReadOnly bool
	detachedIO     bool // no terminal, whatever the caller has
	env            []string
	annotations    []string
	network        string
	timeout        time.Duration
	json, quiet    bool
	overlay        bool // every exec a transaction, whatever the profile says
	memory         string
	cpus           float64
	pids           int64
	paths          *paths
}

func newRunCommand(p *paths) *cobra.Command {
	f := &runFlags{paths: p}
	c := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run a command on this host's programs, or on an image, with no engine",
		Long: `Run a command in a container of its own and remove everything afterwards.

Without --rootfs or --image the command sees this host's /usr and what belongs
to it read-only, an /etc without secrets, private /tmp, /run and home, and the
current folder, writable, as its workspace at its own path. It runs as the owner
of that folder, without capabilities and without a network. Without root it runs
as you, in a user namespace; docs/ROOTLESS.md says what is different then.

The exit status is the command's; 128+N if signal N ended it, 124 after a
time-out, 125 if agentsafectl failed, 126 if the command can't be executed, 127
if it does not exist.`,
		Example: `  agentsafectl run -- make test
  agentsafectl run --timeout 5m --memory 2g --workspace ~/src/project -- npm test
  agentsafectl run --image alpine.tar -- sh -c 'apk --version'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			err := f.run(c.Context(), args)
			var exit *exitError
			if err == nil || errors.As(err, &exit) {
				return err
			}
			return &exitError{code: exitCode(err), err: err}
		},
	}
	flags := c.Flags()
	flags.SetInterspersed(false) // what follows the command is the command's
	flags.StringVar(&f.id, "id", "", "`name` of the container (default: random)")
	flags.StringVar(&f.profile, "profile", "agent", "`policy` to run under: a built-in name, or the path of a file (with a slash)")
	f.addRoot(c)
	flags.StringVar(&f.network, "network", task.NetworkNone, "none or host; host needs a profile that grants it")
	flags.DurationVar(&f.timeout, "timeout", 0, "end the task, with all its processes, after this `time`")
	flags.StringVar(&f.memory, "memory", "", "memory limit in bytes, or with k, m, g")
	flags.Float64Var(&f.cpus, "cpus", 0, "CPU limit in cores")
	flags.Int64Var(&f.pids, "pids-limit", defaultPIDs, "limit of processes and threads, 0 for none")
	flags.BoolVar(&f.json, "json", false, "print one JSON object with exit status and captured output")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print no notes of the profile")
	flags.StringVar(&f.worktree, "worktree", "", "work in a git worktree of its own, on `BRANCH` (default agentsafe/ID), beside the repository that --workspace names")
	flags.Lookup("worktree").NoOptDefVal = container.WorktreeAuto
	flags.BoolVar(&f.keepTree, "keep-worktree", false, "leave the folder of the worktree when its layers are removed")
	return c
}

// addRoot adds the flags that say what a command runs on.
func (f *runFlags) addRoot(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.rootfs, "rootfs", "", "run on the root file system in `dir`; it is not changed")
	flags.StringVar(&f.image, "image", "", "run on the image in `file.tar` (docker save or OCI layout)")
	flags.StringVar(&f.imageName, "image-name", "", "which image, if the file holds several")
	flags.StringVar(&f.workspace, "workspace", "", "`folder` to work in, writable at its own path (default on the host's programs: the current one)")
	flags.StringVar(&f.user, "user", "", "run as `uid[:gid]` (with --image also by the image's names)")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "set `NAME=VALUE`, or pass NAME on from this environment")
	f.addAnnotations(c)
	c.MarkFlagsMutuallyExclusive("rootfs", "image")
}

func (f *runFlags) addAnnotations(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.annotations, "annotation", nil, "annotate the container with `KEY=VALUE`: owner, task and trace id for the evidence, or what tightens its policy (agentsafe.dev/...)")
}

// annotations parses KEY=VALUE; nil for none.
func annotations(list []string) (map[string]string, error) {
	var out map[string]string
	for _, a := range list {
		key, value, ok := strings.Cut(a, "=")
		if _, twice := out[key]; key == "" || !ok || twice || strings.ContainsRune(a, 0) {
			return nil, fmt.Errorf("--annotation %q: want KEY=VALUE, each key once", a)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = value
	}
	return out, nil
}

// run is the whole command.
func (f *runFlags) run(ctx context.Context, command []string) error {
	if f.worktree != "" {
		return f.runWorktree(ctx, command)
	}
	return f.open(ctx, command, func(ctx context.Context, o *operation) error { return o.run(ctx) })
}

// open opens what an operation works on, and calls then with it.
func (f *runFlags) open(ctx context.Context, command []string, then func(context.Context, *operation) error) error {
	if f.timeout < 0 {
		return fmt.Errorf("--timeout %s: negative", f.timeout)
	}
	// Before anything is read or locked: this starts an ordinary user's program anew.
	if err := f.paths.asRoot(""); err != nil {
		return err
	}
	// Whoever is in the container must not ptrace or read the process that sets
	// it up (CVE-2016-9962).
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set undumpable: %w", err)
	}
	if f.image != "" || f.rootfs != "" {
		// Before anything is read or locked: this starts the program anew.
		if err := enterOwnMountNamespace(); err != nil {
			return err
		}
	}
	r, err := f.request(command)
	if err != nil {
		return err
	}
	o := &operation{flags: f, request: r, started: time.Now(), rootless: rootless.ForUser()}
	if err := o.asUser(); err != nil {
		return err
	}
	if err := o.openWorkspace(); err != nil {
		return fmt.Errorf("--workspace: %w", err)
	}
	defer o.workspace.Close() // nil has a Close, too
	if err := o.openRuntime(); err != nil {
		return err
	}
	defer o.runtime.Close()
	if err := o.sweep(ctx); err != nil {
		return err
	}
	return then(ctx, o)
}

// request turns flags into what the planner reads.
func (f *runFlags) request(command []string) (*task.Request, error) {
	r := &task.Request{
		ID: f.id, Command: command, Network: f.network, PIDsMax: f.pids, CPUs: f.cpus,
	}
	if r.ID == "" {
		r.ID = newID()
	}
	var err error
	if r.MemoryMaxBytes, err = parseBytes(f.memory); err != nil {
		return nil, fmt.Errorf("--memory: %w", err)
	}
	if r.Env, err = environment(f.env, os.LookupEnv); err != nil {
		return nil, fmt.Errorf("--env: %w", err)
	}
	if r.Annotations, err = annotations(f.annotations); err != nil {
		return nil, err
	}
	r.Common, r.CommonReadOnly = f.common, f.commonReadOnly
	if !f.json && !f.detachedIO {
		if outer := attachedTerminal(); outer != nil {
			r.Terminal, r.Term = true, os.Getenv("TERM")
			if size, err := outer.Size(); err == nil {
				r.Rows, r.Columns = uint(size.Height), uint(size.Width)
			}
		}
	}
	return r, nil
}

// openWorkspace opens the folder to work in, if there is one.
func (o *operation) openWorkspace() error {
	dir := o.flags.workspace
	if dir == "" {
		if o.flags.image != "" || o.flags.rootfs != "" {
			return nil
		}
		dir = "."
	}
	f, realPath, err := task.OpenWorkspace(dir)
	if err != nil {
		return err
	}
	o.workspace, o.request.Workspace = f, realPath
	o.request.Source = "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
	return nil
}

// environment resolves `NAME` to the caller's value and keeps `NAME=VALUE`. A
// name that the caller does not have is left out, as in docker run.
func environment(list []string, lookup func(string) (string, bool)) ([]string, error) {
	var out []string
	for _, e := range list {
		name, _, hasValue := strings.Cut(e, "=")
		if name == "" || strings.ContainsRune(e, 0) {
			return nil, fmt.Errorf("%q: not NAME=VALUE or NAME", e)
		}
		if !hasValue {
			value, ok := lookup(name)
			if !ok {
				continue
			}
			e = name + "=" + value
		}
		out = append(out, e)
	}
	return out, nil
}

// parseBytes reads a size such as 512m. Units are powers of 1024.
func parseBytes(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	digits, shift := strings.TrimSuffix(strings.ToLower(s), "b"), 0
	for i, unit := range []string{"k", "m", "g", "t"} {
		if rest, ok := strings.CutSuffix(digits, unit); ok {
			digits, shift = rest, 10*(i+1)
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 || n > (1<<62)>>shift {
		return 0, fmt.Errorf("%q: not a size such as 512m or 2g", s)
	}
	return n << shift, nil
}
