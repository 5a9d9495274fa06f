package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/record"
)

// recordChild is the hidden command that becomes the recorded run.
const recordChild = "record-child"

func newGenerateCommand(p *paths) *cobra.Command {
	var name, output, observations string
	c := &cobra.Command{
		Use:   "generate [flags] -- COMMAND [ARG...]",
		Short: "Watch a run, and write a profile that lets it pass",
		Long: "Runs a command on this host, as you, NOT contained, and writes a commented profile (YAML) that grants\n" +
			"what the run did: folders, programs, names and ports, packs of system calls, processes. It extends the\n" +
			"tightest built-in profile. With --observations FILE what was seen is kept there, and several runs merge.\n" +
			"The exit status is the command's.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			status, err := generate(c, p, args, name, output, observations)
			if err != nil {
				return err
			}
			if status != 0 {
				return &exitError{code: status, err: fmt.Errorf("the command failed with status %d; the profile is of what it did until then", status)}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&name, "name", "generated", "`name` of the profile")
	f.StringVarP(&output, "output", "o", "", "`file` to write (default: standard output)")
	f.StringVar(&observations, "observations", "", "`file` of what earlier runs have shown; this run's is added")
	return c
}

func newRecordChildCommand() *cobra.Command {
	return &cobra.Command{
		Use: recordChild, Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return record.Child(args) },
	}
}

func generate(c *cobra.Command, p *paths, args []string, name, output, observations string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	home, _ := os.UserHomeDir() //nolint:errcheck // "" is no home
	seen, status, err := record.Run(c.Context(), &record.Options{
		Args: args, Self: self, ChildArgs: []string{recordChild}, Home: home,
		CacheDir: filepath.Join(p.data, filterName), Helper: siblingProgram("agentsafe-seccomp"),
	})
	if err != nil {
		return 0, fmt.Errorf("record: %w", err)
	}
	if observations != "" {
		if seen, err = mergeObservations(observations, seen); err != nil {
			return 0, err
		}
	}
	text := []byte(record.YAML(seen, name))
	if output == "" {
		_, err = c.OutOrStdout().Write(text)
		return status, err
	}
	return status, os.WriteFile(output, text, 0o644) //nolint:gosec // a profile is no secret
}

func mergeObservations(file string, seen *record.Observations) (*record.Observations, error) {
	all := record.NewObservations(seen.Home, seen.Workspace)
	data, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(data, all); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if all.Home != seen.Home || all.Workspace != seen.Workspace {
			return nil, fmt.Errorf("%s: is of runs in %s with the home %s: runs merge that had the same directories", file, all.Workspace, all.Home)
		}
	}
	all.Merge(seen)
	if data, err = json.MarshalIndent(all, "", "  "); err != nil {
		return nil, err
	}
	return all, os.WriteFile(file, append(data, '\n'), 0o600)
}
