package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/profiles/profilefile"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// loadProfile takes the name of a profile that is built in or installed, or a
// path (with a slash in it, so that no file in the current folder can pass for
// one of them).
func loadProfile(name string) (*profiles.Profile, error) {
	if strings.Contains(name, "/") {
		return (&profileFiles{}).load(name)
	}
	p, err := container.LoadProfile(name)
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, meant(name))
	}
	return p, nil
}

// meant guesses what somebody meant by a name that no profile has; "" for no guess.
func meant(name string) string {
	if st, err := os.Stat(name); err == nil && st.Mode().IsRegular() {
		return fmt.Sprintf("; the file of this name is ./%s", name)
	}
	installed, _ := installedProfiles()
	if near := profilefile.Nearest(name, append(profiles.BuiltinNames(), installed...)); near != "" && near != name {
		return "; did you mean " + near + "?"
	}
	return ""
}

// profileFiles loads files that may extend each other and what is installed.
type profileFiles struct {
	// byName are the files that are being installed together.
	byName map[string]string
	// loading are the files that wait for their parents.
	loading []string
}

// load reads a file with all that it extends.
func (l *profileFiles) load(file string) (*profiles.Profile, error) {
	if slices.Contains(l.loading, file) {
		return nil, fmt.Errorf("extends itself: %s", strings.Join(append(l.loading, file), " extends "))
	}
	l.loading = append(l.loading, file)
	defer func() { l.loading = l.loading[:len(l.loading)-1] }()
	f, err := openProfile(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return profilefile.ParseExtending(f, file, l.parent)
}

// parent finds what a file extends: a built-in profile, one of the files, or an installed profile.
func (l *profileFiles) parent(name string) (*profiles.Profile, error) {
	if profiles.IsBuiltin(name) {
		return profiles.Builtin(name)
	}
	if file, ok := l.byName[name]; ok {
		return l.load(file)
	}
	p, err := container.LoadProfile(name)
	if err != nil {
		return nil, err
	}
	return p, l.acyclic(p)
}

// acyclic refuses an installed parent that itself descends from a file that waits for it. What is installed keeps what
// its parents were, so this would end, with a profile that nobody can tell the contents of.
func (l *profileFiles) acyclic(p *profiles.Profile) error {
	chain := []string{p.Name}
	for at := p; ; {
		for _, file := range l.loading {
			if name, err := nameOf(file); err == nil && name == at.Name {
				return fmt.Errorf("%q extends itself: %s extends %s, as installed", name, file, strings.Join(chain, " extends "))
			}
		}
		if at.Extends == "" || profiles.IsBuiltin(at.Extends) || slices.Contains(chain, at.Extends) {
			return nil
		}
		parent, err := container.LoadProfile(at.Extends)
		if err != nil {
			return nil //nolint:nilerr // removed since: the child has all of it
		}
		at, chain = parent, append(chain, parent.Name)
	}
}

// nameOf returns what a file calls its profile.
func nameOf(file string) (string, error) {
	f, err := openProfile(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return profilefile.Name(f), nil
}

// name notes what a file calls its profile.
func (l *profileFiles) name(file string) error {
	name, err := nameOf(file)
	if err != nil {
		return err
	}
	if other, ok := l.byName[name]; ok && name != "" && other != file {
		return fmt.Errorf("%s and %s both call themselves %q", other, file, name)
	}
	if l.byName == nil {
		l.byName = map[string]string{}
	}
	l.byName[name] = file
	return nil
}

func openProfile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
