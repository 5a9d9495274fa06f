package main

import (
	"fmt"
	"os"

	"github.com/containerd/console"
	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/doctor"
)

// exitNotEnforceable is doctor's status where the agent profile can't be
// enforced.
const exitNotEnforceable = 1

func newDoctorCommand(p *paths) *cobra.Command {
	var asJSON bool
	var probe string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this kernel and host can enforce, and what to do about the rest",
		Long: `Ask the kernel and the host what they can enforce.

The exit status is 0 if the agent profile can be enforced, 1 if not.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if probe != "" {
				return doctor.RunProbe(probe)
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			facts, err := doctor.Probe(c.Context(), doctor.Options{
				Program: self, ProbeArgs: []string{"doctor", "--probe"}, StateDir: p.state, DataDir: p.data,
				Programs: map[string]string{"agentsafe": siblingProgram("agentsafe"), "agentsafe-seccomp": siblingProgram("agentsafe-seccomp")},
			})
			if err != nil {
				return err
			}
			report := doctor.Judge(facts)
			if asJSON {
				err = report.WriteJSON(os.Stdout)
			} else {
				err = report.WriteTable(os.Stdout, wantColour())
			}
			if err == nil && !report.Enforceable {
				err = &exitError{code: exitNotEnforceable}
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&probe, "probe", "", "")
	c.Flags().Lookup("probe").Hidden = true // the children of doctor
	return c
}

// wantColour says whether standard output is a terminal whose owner has not
// asked for plain text (no-color.org).
func wantColour() bool {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := console.ConsoleFromFile(os.Stdout)
	return err == nil
}
