package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/profileview"
)

// checked is what is to be said of one file.
type checked struct {
	File  string   `json:"file"`
	Valid bool     `json:"valid"`
	Name  string   `json:"name,omitempty"`
	Error string   `json:"error,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

func newCheckCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "check FILE...", Short: "Say what is wrong with profile files, and what looks wrong", Args: cobra.MinimumNArgs(1),
		Long: "Errors end with status 125, when all files have been looked at. What is valid and looks wrong (grants that\n" +
			"change nothing, that cancel each other, or that make the rest mean little) is listed, and the status is 0.",
		RunE: func(c *cobra.Command, args []string) error {
			var list []checked
			for _, name := range args {
				list = append(list, checkProfile(name))
			}
			return reportChecked(c, list, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func checkProfile(file string) checked {
	p, err := (&profileFiles{}).load(file)
	if err != nil {
		return checked{File: file, Error: err.Error()}
	}
	return checked{File: file, Valid: true, Name: p.Name, Notes: profileview.Lint(p, runtime.GOARCH)}
}

func reportChecked(c *cobra.Command, list []checked, asJSON bool) error {
	var errs []error
	for _, f := range list {
		if !f.Valid {
			errs = append(errs, errors.New(f.Error))
		}
	}
	if asJSON {
		enc := json.NewEncoder(c.OutOrStdout())
		enc.SetIndent("", "  ")
		if err := enc.Encode(list); err != nil || len(errs) == 0 {
			return err
		}
		return &exitError{code: exitOwn}
	}
	for _, f := range list {
		if !f.Valid {
			continue
		}
		fmt.Fprintf(c.OutOrStdout(), "%s: profile %q is valid\n", f.File, f.Name)
		for _, note := range f.Notes {
			fmt.Fprintf(c.OutOrStdout(), "  %s\n", note)
		}
	}
	return errors.Join(errs...)
}
