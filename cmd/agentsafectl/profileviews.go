package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"

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

// explanation is one line of the answer.
type explanation struct {
	Question string `json:"question"`
	profiles.Answer
}

func newExplainCommand() *cobra.Command {
	var syscalls, paths, hosts, variables []string
	var asJSON bool
	var home, workspace string
	c := &cobra.Command{
		Use:   "explain PROFILE [--syscall NAME] [--path PATH] [--host HOST[:PORT]] [--env NAME]",
		Short: "Say which rule decides about something, and what would allow it", Long: profileArgument, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := viewProfile(args[0])
			if err != nil {
				return err
			}
			var out []explanation
			for _, s := range syscalls {
				out = append(out, explanation{"syscall " + s, profiles.ExplainSyscall(p, s, runtime.GOARCH)})
			}
			resolved := profiles.Resolve(p, home, workspace)
			for _, f := range paths {
				for _, a := range profiles.ExplainPath(resolved, f) {
					out = append(out, explanation{"path " + f, a})
				}
			}
			for _, h := range hosts {
				out = append(out, explanation{"host " + h, profiles.ExplainHost(p, h)})
			}
			for _, v := range variables {
				out = append(out, explanation{"variable " + v, profiles.ExplainEnv(p, v)})
			}
			if len(out) == 0 {
				return errors.New("name something to explain: --syscall, --path, --host or --env")
			}
			return printExplanations(c, out, asJSON)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&syscalls, "syscall", nil, "`name` of a system call")
	f.StringSliceVar(&paths, "path", nil, "`path` in the container")
	f.StringSliceVar(&hosts, "host", nil, "`host`, with a port or without")
	f.StringSliceVar(&variables, "env", nil, "`name` of a variable")
	f.StringVar(&home, "home", "/root", "`directory` that $HOME stands for")
	f.StringVar(&workspace, "workspace", "/workspace", "`directory` that $WORKSPACE stands for")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printExplanations(c *cobra.Command, out []explanation, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(c.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(out)
	}
	w := c.OutOrStdout()
	for _, e := range out {
		why := e.Why
		if strings.Contains(why, "\n") {
			why = "\n    " + strings.ReplaceAll(why, "\n", "\n    ")
		} else if why != "" {
			why = " (" + why + ")"
		}
		fmt.Fprintf(w, "%s: %s by %s%s\n", e.Question, e.Verdict, e.Rule, why)
		if e.Allow != "" {
			fmt.Fprintf(w, "    allowed by %s\n", e.Allow)
		}
	}
	return nil
}

func newCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check FILE...", Short: "Say what is wrong with profile files, and what looks wrong", Args: cobra.MinimumNArgs(1),
		Long: "Errors end with status 125. What is valid and looks wrong (grants that change nothing, that cancel each\n" +
			"other, or that make the rest mean little) is listed, and the status is 0.",
		RunE: func(c *cobra.Command, args []string) error {
			for _, name := range args {
				p, err := (&profileFiles{}).load(name)
				if err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "%s: profile %q is valid\n", name, p.Name)
				for _, note := range profileview.Lint(p, runtime.GOARCH) {
					fmt.Fprintf(c.OutOrStdout(), "  %s\n", note)
				}
			}
			return nil
		},
	}
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
