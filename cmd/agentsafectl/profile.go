package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// newProfileCommand manages the profiles that the runtime knows by name.
func newProfileCommand(p *paths) *cobra.Command {
	c := &cobra.Command{Use: "profile", Short: "Install and list profiles", Args: cobra.NoArgs}
	c.AddCommand(
		&cobra.Command{
			Use:   "install FILE...",
			Short: "Check profiles and make them known to the runtime by their names",
			Long: "Reads profiles (YAML), checks them, and writes each to " + container.ProfileDir + ",\n" +
				"where agentsafe --profile NAME, the shim's options and agentsafectl run --profile NAME find it.\n" +
				"Containers that run keep the profile they were created with.",
			Args: cobra.MinimumNArgs(1),
			RunE: func(c *cobra.Command, args []string) error { return installProfiles(c, args) },
		},
	)
	var asJSON bool
	list := &cobra.Command{
		Use: "list", Short: "List the profiles that can be named", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return listProfiles(c, asJSON) },
	}
	list.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(list)
	addProfileViews(c)
	c.AddCommand(newGenerateCommand(p), newProfileTestCommand(p), newRecordingsCommand())
	return c
}

// installProfiles checks all files before it writes the first.
func installProfiles(c *cobra.Command, files []string) error {
	var all []*profiles.Profile
	var loader profileFiles
	for _, file := range files {
		if err := loader.name(file); err != nil {
			return err
		}
	}
	for _, file := range files {
		p, err := loader.load(file)
		if err != nil {
			return err
		}
		if _, err := profiles.Builtin(p.Name); err == nil {
			return fmt.Errorf("%s: %q is the name of a built-in profile", file, p.Name)
		}
		all = append(all, p)
	}
	if err := os.MkdirAll(container.ProfileDir, 0o755); err != nil { //nolint:forbidigo // the host's configuration
		return err
	}
	for _, p := range all {
		if err := installProfile(p); err != nil {
			return fmt.Errorf("install profile %q: %w", p.Name, err)
		}
		fmt.Fprintln(c.OutOrStdout(), p.Name)
	}
	return noteChildren(c, all)
}

// noteChildren names installed profiles that extend one of these: they are still what they were made of.
func noteChildren(c *cobra.Command, parents []*profiles.Profile) error {
	names, err := installedProfiles()
	if err != nil {
		return err
	}
	is := func(name string) bool {
		return slices.ContainsFunc(parents, func(p *profiles.Profile) bool { return p.Name == name })
	}
	for _, name := range names {
		if child, err := container.LoadProfile(name); err == nil && is(child.Extends) && !is(name) {
			fmt.Fprintf(c.ErrOrStderr(), "agentsafectl: note: %s extends %s and keeps what that was: install it again to follow\n", name, child.Extends)
		}
	}
	return nil
}

// installedProfiles lists the names of the profiles in container.ProfileDir.
func installedProfiles() ([]string, error) {
	entries, err := os.ReadDir(container.ProfileDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// installProfile replaces the file atomically: a container that is created meanwhile gets the old one or the new one.
func installProfile(p *profiles.Profile) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(container.ProfileDir, p.Name+".json", append(data, '\n'))
}

// listed is one profile in a list.
type listed struct {
	Name        string `json:"name"`
	Extends     string `json:"extends,omitempty"`
	Description string `json:"description,omitempty"`
	BuiltIn     bool   `json:"builtIn"`
	// Unusable says why this version can't enforce it, or why it can't be read.
	Unusable string `json:"unusable,omitempty"`
}

func listProfiles(c *cobra.Command, asJSON bool) error {
	installed, err := installedProfiles()
	if err != nil {
		return err
	}
	var list []listed
	for _, name := range append(profiles.BuiltinNames(), installed...) {
		l := listed{Name: name, BuiltIn: profiles.IsBuiltin(name)}
		p, err := viewProfile(name)
		if err == nil {
			l.Extends, l.Description = p.Extends, p.Description
			err = p.Validate()
		}
		if err != nil {
			l.Unusable = err.Error()
		}
		list = append(list, l)
	}
	if asJSON {
		enc := json.NewEncoder(c.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(list)
	}
	const padding = 2
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, padding, ' ', 0)
	fmt.Fprintln(w, "NAME\tEXTENDS\tDESCRIPTION")
	for _, l := range list {
		if l.Unusable != "" {
			l.Description = strings.TrimSpace(l.Description + " (unusable: " + l.Unusable + ")")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", l.Name, l.Extends, l.Description)
	}
	return w.Flush()
}
