package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/profiles/profilefile"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// openRuntime opens the runtime under the profile that the caller named.
func (o *operation) openRuntime() error {
	profile, err := loadProfile(o.flags.profile)
	if err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	if n := &profile.Network; n.Mode == profiles.NetworkGateway && n.DialFrom == "" {
		// There is no engine here that could attach a network, and whoever calls is this host's root.
		n.DialFrom = "host"
	}
	if o.flags.overlay && !profile.Unrestricted {
		if w := &profile.Filesystem.Workspace; w.Mode == "" || w.Mode == profiles.WorkspaceDirect {
			w.Mode = profiles.WorkspaceOverlay
		}
		if profile.Filesystem.Workspace.Mode == profiles.WorkspaceOverlay {
			profile.Exec.Transaction = "auto"
		}
	}
	o.runtime, err = container.Open(container.Options{
		Root: o.flags.paths.state, Profile: profile,
		CacheDir: filepath.Join(o.flags.paths.data, filterName), SeccompHelper: siblingProgram("agentsafe-seccomp"),
		LayersDir: filepath.Join(o.flags.paths.data, layersName),
		Warn:      o.note,
	})
	return err
}

// loadProfile takes the name of a profile that is built in or installed, or a
// path (with a slash in it, so that no file in the current folder can pass for
// one of them).
func loadProfile(name string) (*profiles.Profile, error) {
	if !strings.Contains(name, "/") {
		return container.LoadProfile(name)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	return profilefile.Parse(f, name)
}
