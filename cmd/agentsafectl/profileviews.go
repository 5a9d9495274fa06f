package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/profileview"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/profiles/profilefile"
)

const profileArgument = "A profile is a built-in or installed name, or the path of a file (with a slash)."

// addProfileViews adds the commands that show profiles and change nothing.
func addProfileViews(c *cobra.Command) {
	var asJSON, asMarkdown bool
	table := func(c *cobra.Command, t *profileview.Table) error {
		switch {
		case asJSON:
			return t.WriteJSON(c.OutOrStdout())
		case asMarkdown:
			return t.WriteMarkdown(c.OutOrStdout())
		}
		return t.WriteText(c.OutOrStdout())
	}
	show := &cobra.Command{
		Use: "show PROFILE", Short: "Say what a profile grants", Long: profileArgument, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := viewProfile(args[0])
			if err != nil {
				return err
			}
			return table(c, profileview.Show(p))
		},
	}
	matrix := &cobra.Command{
		Use: "matrix [PROFILE...]", Short: "Put profiles beside each other", Long: profileArgument + " Without arguments, all built-in ones.",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = profiles.BuiltinNames()
			}
			var all []*profiles.Profile
			for _, name := range args {
				p, err := viewProfile(name)
				if err != nil {
					return err
				}
				all = append(all, p)
			}
			return table(c, profileview.Matrix(all))
		},
	}
	diff := &cobra.Command{
		Use: "diff A B", Short: "List what one profile grants and the other does not", Long: profileArgument, Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			a, errA := viewProfile(args[0])
			b, errB := viewProfile(args[1])
			if err := errors.Join(errA, errB); err != nil {
				return err
			}
			t, err := profileview.Diff(a, b)
			if err != nil {
				return err
			}
			if len(t.Rows) == 0 && !asJSON {
				_, err := fmt.Fprintf(c.OutOrStdout(), "%s and %s grant the same\n", a.Name, b.Name)
				return err
			}
			return table(c, t)
		},
	}
	for _, command := range []*cobra.Command{show, matrix, diff} {
		command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	}
	matrix.Flags().BoolVar(&asMarkdown, "markdown", false, "print a Markdown table")
	c.AddCommand(show, matrix, diff, newExplainCommand(), newCheckCommand(), newSchemaCommand())
}

// viewProfile loads a profile to look at: of the built-in ones, those too that this version can't enforce.
func viewProfile(name string) (*profiles.Profile, error) {
	if profiles.IsBuiltin(name) {
		return profiles.Builtin(name)
	}
	return loadProfile(name)
}

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of profile files, for editors", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			data, err := profilefile.JSONSchema()
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(data)
			return err
		},
	}
}
