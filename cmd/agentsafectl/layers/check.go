package layers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/ps"
	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
	"github.com/agentsafe/agentsafe/runtime/container"
)

func (a *app) checkCommand() *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "check ID 'COMMAND'",
		Short: "Run a check on the present state of a container's workspaces; promote --after asks for it",
		Long: `Run a command of the shell in the container, where its first process works, and
remember how it ended together with the digest of the workspaces that it judged.
What the check writes is thrown away, so that the state is the same before and
after; if another process has changed it meanwhile, the check counts for nothing.`,
		Example: `  agentsafectl check 4f1c 'make test'
  agentsafectl promote 4f1c --after 'make test'`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			check, err := a.check(c.Context(), c.OutOrStdout(), args[0], args[1], timeout)
			if err != nil {
				return err
			}
			if check.Exit != 0 {
				return fmt.Errorf("check %q: exit status %d on %s", args[1], check.Exit, check.Digest)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "passed on %s\n", check.Digest)
			return err
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", 0, "end the check after this `time`")
	return c
}

// check runs a command on the present state and remembers the outcome.
func (a *app) check(ctx context.Context, out io.Writer, id, command string, timeout time.Duration) (*layer.Check, error) {
	full, before, err := a.digest(id)
	if err != nil {
		return nil, err
	}
	c, err := a.running(full)
	if err != nil {
		return nil, fmt.Errorf("check %q: %w", command, err)
	}
	defer c.Close()
	exit, err := runCheck(ctx, c, out, command, timeout)
	if err != nil {
		return nil, fmt.Errorf("check %q: %w", command, err)
	}
	l, err := a.open(full)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	after, err := l.StateDigest()
	if err != nil {
		return nil, err
	}
	if after != before {
		return nil, fmt.Errorf("check %q: another process has changed the workspaces meanwhile, so it says nothing (exit status %d)", command, exit)
	}
	check := layer.Check{Command: command, Digest: before, Exit: exit, Time: time.Now().UTC()}
	if n := len(l.Transactions); n > 0 {
		check.N = l.Transactions[n-1].N
	}
	return &check, l.AddCheck(check)
}

// digest returns the whole id, and the digest of the present state.
func (a *app) digest(id string) (full, digest string, err error) {
	l, err := a.open(id)
	if err != nil {
		return "", "", err
	}
	defer l.Close()
	digest, err = l.StateDigest()
	return l.ID, digest, err
}

// running loads the container that the layers are of.
func (a *app) running(id string) (*container.Container, error) {
	list, err := ps.Find([]string{*a.state})
	if err != nil {
		return nil, err
	}
	for i := range list {
		if list[i].ID != id || list[i].Status != string(container.StatusRunning) {
			continue
		}
		rt, err := container.Open(container.Options{Root: list[i].Root, LayersDir: a.store(), CacheDir: filepath.Join(*a.data, "cache"), Warn: func(string) {}})
		if err != nil {
			return nil, err
		}
		return rt.Load(id)
	}
	return nil, fmt.Errorf("container %q does not run, and a check runs in it", id)
}

func runCheck(ctx context.Context, c *container.Container, out io.Writer, command string, timeout time.Duration) (int, error) {
	base, err := c.Process()
	if err != nil {
		return 0, err
	}
	process := *base
	process.Args, process.Terminal, process.ConsoleSize = []string{"/bin/sh", "-c", command}, false, nil
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer read.Close()
	defer write.Close()
	if err := write.Chown(int(process.User.UID), int(process.User.GID)); err != nil { // /dev/stdout can be opened then
		return 0, err
	}
	p, err := c.Exec(ctx, &container.ExecOptions{Process: &process, Stdout: write, Stderr: write, WallClock: timeout, Discard: true})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	write.Close()
	var copying sync.WaitGroup
	copying.Go(func() { copySafely(out, read) })
	stop := context.AfterFunc(ctx, func() { p.Kill(context.WithoutCancel(ctx)) }) //nolint:errcheck // it may have ended
	status, err := p.Wait()
	stop()
	// What the check has left in the background is ended with its layer, so that the output ends, too.
	copying.Wait()
	return status, errors.Join(err, ctx.Err())
}

// copySafely prints the output of a task, line by line.
func copySafely(out io.Writer, in io.Reader) {
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadString('\n')
		if line != "" {
			fmt.Fprintln(out, show.Safe(strings.TrimSuffix(line, "\n")))
		}
		if err != nil {
			return
		}
	}
}

// after wants a check to have passed on the present state: one that is remembered, or one that is run now.
func (a *app) after(ctx context.Context, out io.Writer, id, command string) (*layer.Check, error) {
	l, err := a.open(id)
	if err != nil {
		return nil, err
	}
	digest, err := l.StateDigest()
	passed := l.Passed(command, digest)
	l.Close()
	if err != nil {
		return nil, err
	}
	if passed != nil {
		return passed, nil
	}
	check, err := a.check(ctx, out, id, command, 0)
	if err != nil {
		return nil, fmt.Errorf("%w; no check of this command has passed on %s", err, digest)
	}
	if check.Exit != 0 {
		return nil, fmt.Errorf("promote: nothing was written, because the check %q has ended with %d on %s", command, check.Exit, digest)
	}
	return check, nil
}
