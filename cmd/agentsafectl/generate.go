package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/record"
	"github.com/agentsafe/agentsafe/cmd/agentsafectl/task"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/profiles/profilefile"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// recordChild is the hidden command that becomes the recorded run.
const recordChild = "record-child"

// generateFlags are the flags of profile generate.
type generateFlags struct {
	name, output, observations, recording string
	run                                   runFlags
}

func newGenerateCommand(p *paths) *cobra.Command {
	f := &generateFlags{run: runFlags{paths: p, network: task.NetworkNone, pids: defaultPIDs, quiet: true}}
	c := &cobra.Command{
		Use:   "generate [flags] [-- COMMAND [ARG...]]",
		Short: "Watch a run, and write a profile that lets it pass",
		Long: "Runs a command, watches it, and writes a commented profile (YAML) that grants what the run did: folders,\n" +
			"programs, names and ports, packs of system calls, processes. It extends the tightest built-in profile.\n\n" +
			"The command runs on this host, as you, NOT contained. With --image or --rootfs it runs on those, in a\n" +
			"container under --profile, as agentsafectl run does. With --recording nothing is run: the profile is made\n" +
			"of what was recorded of containers under an engine (see agentsafectl profile recordings).\n\n" +
			"With --observations FILE what was seen is kept there, and several runs merge. The exit status is the\n" +
			"command's.",
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error { return f.generate(c, args) },
	}
	flags := c.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&f.name, "name", "generated", "`name` of the profile")
	flags.StringVarP(&f.output, "output", "o", "", "`file` to write (default: standard output)")
	flags.StringVar(&f.observations, "observations", "", "`file` of what earlier runs have shown; this run's is added")
	flags.StringVar(&f.recording, "recording", "", "make the profile of the recording of this `name`, and run nothing")
	flags.StringVar(&f.run.profile, "profile", profiles.NameAgent, "`policy` to run under, with --image or --rootfs")
	f.run.addRoot(c)
	c.MarkFlagsMutuallyExclusive("recording", "image", "rootfs")
	return c
}

func newRecordChildCommand() *cobra.Command {
	return &cobra.Command{
		Use: recordChild, Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return record.Child(args) },
	}
}

// generate is the whole command.
func (f *generateFlags) generate(c *cobra.Command, args []string) error {
	contained := f.run.image != "" || f.run.rootfs != ""
	if err := f.prepare(); err != nil { // before the run, which may be long
		return err
	}
	switch {
	case f.recording != "" && len(args) > 0:
		return errors.New("--recording: nothing is run, so there can be no command")
	case f.recording != "":
		return f.generateRecorded(c)
	case len(args) == 0 && f.run.image == "":
		return errors.New("no command")
	case !contained:
		for _, name := range []string{"profile", "workspace", "user", "env", "image-name"} {
			if c.Flags().Changed(name) {
				return fmt.Errorf("--%s: needs --image or --rootfs, without which the command runs on this host, not contained", name)
			}
		}
		seen, status, err := f.onHost(c.Context(), args)
		if err != nil {
			return err
		}
		return f.finish(c, seen, status)
	}
	return f.contained(c, args)
}

// prepare checks what can be checked before something is run: that the profile can be called so, and be written.
func (f *generateFlags) prepare() error {
	if err := profilefile.CheckName(f.name); err != nil {
		return fmt.Errorf("--name %w", err)
	}
	if f.output == "" {
		return nil
	}
	_, err := os.Lstat(f.output)
	fresh := errors.Is(err, os.ErrNotExist)
	out, err := os.OpenFile(f.output, os.O_WRONLY|os.O_CREATE, 0o644) //nolint:gosec // a profile is no secret
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	if fresh {
		err = os.Remove(f.output) // a run that fails leaves none
	}
	return errors.Join(err, out.Close())
}

// generateRecorded makes the profile of a recording.
func (f *generateFlags) generateRecorded(c *cobra.Command) error {
	seen, err := record.ReadFile(filepath.Join(container.RecordingsDir, filepath.Base(f.recording)+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("--recording %s: there is none (agentsafectl profile recordings lists them; one is written when its container ends)", f.recording)
	}
	if err != nil {
		return err
	}
	return f.finish(c, seen, 0)
}

func (f *generateFlags) onHost(ctx context.Context, args []string) (*record.Observations, int, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, 0, err
	}
	home, _ := os.UserHomeDir()
	seen, status, err := record.Run(ctx, &record.Options{
		Args: args, Self: self, ChildArgs: []string{recordChild}, Home: home,
		CacheDir: filepath.Join(f.run.paths.data, filterName), Helper: siblingProgram("agentsafe-seccomp"),
	})
	if err != nil {
		return nil, 0, fmt.Errorf("record: %w", err)
	}
	return seen, status, nil
}

// contained runs the command in a container.
func (f *generateFlags) contained(c *cobra.Command, args []string) error {
	err := f.run.open(c.Context(), args, func(ctx context.Context, o *operation) (err error) {
		dir, err := os.MkdirTemp("", "agentsafe-recording-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		o.record = &container.Recording{File: filepath.Join(dir, "seen.json")}
		err = o.run(ctx)
		status := 0
		if exit, ok := errors.AsType[*exitError](err); ok {
			status = exit.code
		} else if err != nil {
			return err
		}
		seen, rerr := record.ReadFile(o.record.File)
		if rerr != nil {
			return errors.Join(err, fmt.Errorf("read what was recorded: %w", rerr))
		}
		return f.finish(c, seen, status)
	})
	if _, ok := errors.AsType[*exitError](err); ok || err == nil {
		return err
	}
	return &exitError{code: exitCode(err), err: err}
}

// finish merges, writes the profile, and passes the command's exit status on.
func (f *generateFlags) finish(c *cobra.Command, seen *record.Observations, status int) (err error) {
	if f.observations != "" {
		if seen, err = mergeObservations(f.observations, seen); err != nil {
			return err
		}
	}
	text := []byte(record.YAML(seen, f.name))
	if f.output == "" {
		_, err = c.OutOrStdout().Write(text)
	} else {
		err = os.WriteFile(f.output, text, 0o644) //nolint:gosec // a profile is no secret
	}
	if err == nil && status != 0 {
		return &exitError{code: status, err: fmt.Errorf("the command failed with status %d; the profile is of what it did until then", status)}
	}
	return err
}

func mergeObservations(file string, seen *record.Observations) (*record.Observations, error) {
	all, err := record.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return seen, seen.WriteFile(file)
	case err != nil:
		return nil, err
	case all.Home != seen.Home || all.Workspace != seen.Workspace:
		return nil, fmt.Errorf("%s: is of runs in %s with the home %s: runs merge that had the same directories", file, all.Workspace, all.Home)
	}
	all.Merge(seen)
	return all, all.WriteFile(file)
}
