package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/record"
	"github.com/agentsafe/agentsafe/cmd/agentsafectl/refusals"
	"github.com/agentsafe/agentsafe/cmd/agentsafectl/task"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

// traceChild is the hidden command that traces a container for `profile test`.
const traceChild = "trace-child"

// traceFD is where it says that it is ready, and what it has found.
const traceFD = 3

func newTraceChildCommand() *cobra.Command {
	return &cobra.Command{
		Use: traceChild, Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			pid, err := strconv.Atoi(args[0])
			if err != nil {
				return err
			}
			out := os.NewFile(traceFD, "report")
			defer out.Close()
			found, err := record.Refusals(pid, func() error {
				_, err := fmt.Fprintln(out, traceReady)
				return err
			})
			if err != nil {
				return err
			}
			return json.NewEncoder(out).Encode(found)
		},
	}
}

const traceReady = "ready"

func newProfileTestCommand(p *paths) *cobra.Command {
	f := &runFlags{paths: p, network: task.NetworkNone, pids: 4096}
	c := &cobra.Command{
		Use:   "test [flags] PROFILE -- COMMAND [ARG...]",
		Short: "Run a command under a profile, and list what was refused and what would allow it",
		Long: `Run a command under a profile as agentsafectl run does, and list what it was
refused: system calls, files, names and addresses, limits, each with the rule
and what would allow it. Every system call is looked at, so it takes several
times as long. A program may try what it does well without: not everything that
is listed has to be allowed. The list goes to standard error, the exit status is
the command's.`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			command := args[1:]
			if command[0] == "--" { // behind the profile it is no flag's end any more
				command = command[1:]
			}
			if len(command) == 0 {
				return errors.New("no command")
			}
			f.profile = args[0]
			err := f.open(c.Context(), command, func(ctx context.Context, o *operation) error {
				return testProfile(ctx, c.ErrOrStderr(), o)
			})
			var exit *exitError
			if err == nil || errors.As(err, &exit) {
				return err
			}
			return &exitError{code: exitCode(err), err: err}
		},
	}
	flags := c.Flags()
	flags.SetInterspersed(false)
	f.addRoot(c)
	flags.DurationVar(&f.timeout, "timeout", 0, "end the task, with all its processes, after this `time`")
	flags.BoolVar(&f.json, "json", false, "print one JSON object with exit status, captured output and denials")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print no notes of the profile")
	return c
}

// testProfile runs an operation under a tracer.
func testProfile(ctx context.Context, out io.Writer, o *operation) error {
	var t *profileTrace
	o.created = func(c *container.Container) (err error) {
		t, err = startTrace(ctx, c)
		return err
	}
	o.denials = func() []denials.Denial { return t.denials() }
	err := o.run(ctx)
	if t == nil {
		return err
	}
	defer t.close()
	if o.flags.json {
		return err // the report has them
	}
	list := t.denials()
	if len(list) == 0 {
		fmt.Fprintln(out, "agentsafectl: nothing was refused")
		return err
	}
	fmt.Fprintf(out, "agentsafectl: refused under the profile %s:\n", o.flags.profile)
	return errors.Join(err, refusals.Write(out, list, new(bool)))
}

// profileTrace is a tracer of a container, and the container's own denials.
type profileTrace struct {
	cmd     *exec.Cmd
	report  *bufio.Reader
	pipe    *os.File
	log     *os.File // nil for none
	profile *profiles.Profile
	found   []denials.Denial
	done    bool
}

// startTrace returns when the container is traced.
func startTrace(ctx context.Context, c *container.Container) (*profileTrace, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	d, err := c.Detail()
	if err != nil {
		return nil, err
	}
	t := &profileTrace{profile: d.Policy.Profile}
	if told, err := c.InForce(); err == nil {
		t.profile = told
	}
	// Open beyond the container's end: its state is gone then.
	if t.log, err = c.OpenDenials(); err != nil {
		t.log = nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	t.pipe, t.report = r, bufio.NewReader(r)
	t.cmd = exec.CommandContext(ctx, self, traceChild, strconv.Itoa(c.State().InitPID))
	var complaint strings.Builder
	t.cmd.ExtraFiles, t.cmd.Stderr = []*os.File{w}, &complaint
	if err := t.cmd.Start(); err != nil {
		t.close()
		return nil, fmt.Errorf("trace the container: %w", err)
	}
	w.Close()
	if line, err := t.report.ReadString('\n'); err != nil || line != traceReady+"\n" {
		err = errors.Join(err, t.cmd.Wait())
		t.close()
		return nil, fmt.Errorf("trace the container: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return t, nil
}

func (t *profileTrace) close() {
	for _, f := range []*os.File{t.pipe, t.log} {
		if f != nil {
			f.Close()
		}
	}
}

// denials returns what was refused, once the container has ended.
func (t *profileTrace) denials() []denials.Denial {
	if t == nil || t.done {
		return t.seen()
	}
	t.done = true
	if t.log != nil {
		for s := bufio.NewScanner(t.log); s.Scan(); {
			if d, err := denials.ParseLine(s.Bytes()); err == nil {
				t.found = append(t.found, d)
			}
		}
	}
	var list []record.Refusal
	err := errors.Join(json.NewDecoder(t.report).Decode(&list), t.cmd.Wait())
	if err != nil {
		t.found = append(t.found, denials.Denial{Kind: denials.Note, What: "system calls and files could not be traced", Why: err.Error()})
	}
	for i := range list {
		t.found = append(t.found, explainRefusal(t.profile, &list[i]))
	}
	return t.found
}

func (t *profileTrace) seen() []denials.Denial {
	if t == nil {
		return nil
	}
	return t.found
}
