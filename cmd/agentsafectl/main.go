package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/layers"
	"github.com/agentsafe/agentsafe/cmd/agentsafectl/ps"
	"github.com/agentsafe/agentsafe/cmd/agentsafectl/refusals"
)

// version and commit are set by the linker.
var version, commit = "0.1.0-dev", "" //nolint:gochecknoglobals // the linker needs a variable

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	root := newRootCommand()
	root.SetArgs(args)
	err := root.Execute()
	if exit, ok := errors.AsType[*exitError](err); ok {
		if exit.err != nil {
			fmt.Fprintln(os.Stderr, "agentsafectl:", exit.err)
		}
		return exit.code
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "agentsafectl:", err)
		return exitOwn
	}
	return 0
}

// paths are the directories that all commands share.
type paths struct {
	state string // containers, as agentsafe keeps them
	runs  string // bundles of runs that are going on
	data  string // caches, images, upper directories
	// err is why an ordinary user has no default for them.
	err error
}

func newRootCommand() *cobra.Command {
	p := defaultPaths()
	c := &cobra.Command{
		Use:           "agentsafectl",
		Short:         "Run tasks of AI agents under agentsafe, and see what this host can enforce",
		Version:       versionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	c.CompletionOptions.DisableDefaultCmd = true
	flags := c.PersistentFlags()
	flags.StringVar(&p.state, "root", p.state, "directory of container `state`")
	flags.StringVar(&p.runs, "run-dir", p.runs, "directory of `bundles` of running tasks")
	flags.StringVar(&p.data, "data-dir", p.data, "directory of caches, images and layers")
	c.AddCommand(newRunCommand(p), newAuditCommand(p), newDoctorCommand(p), newProfileCommand(p), newConfigCommand(), newNetworkCommand(p))
	c.AddCommand(newRecordChildCommand(), newTraceChildCommand(), newRecordAttachCommand(), newWorktreeCommand(p))
	c.AddCommand(ps.Command(&p.state), refusals.Command(&p.state, &p.data))
	c.AddCommand(newMCPCommand(p), newExecCommand(p), newReportCommand(p), newMetricsCommand(p), newTelemetryCommand(p))
	c.AddCommand(layers.Commands(&p.data, &p.state, p.asRoot)...)
	return c
}

func versionText() string {
	if commit == "" {
		return version
	}
	return version + " (" + commit + ")"
}

// siblingProgram finds a program that is installed beside this one; empty if it
// is not there.
func siblingProgram(name string) string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	for _, dir := range []string{filepath.Dir(self), "/usr/local/bin", "/usr/bin"} {
		p := filepath.Join(dir, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return p
		}
	}
	return ""
}
