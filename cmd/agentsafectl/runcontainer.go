package main

import (
	"fmt"
	"path/filepath"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// openRuntime opens the runtime under the profile that the caller named.
func (o *operation) openRuntime() error {
	profile, err := loadProfile(o.flags.profile)
	if err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	if n := &profile.Network; n.Mode == profiles.NetworkGateway && n.DialFrom == "" {
		// There is no engine here that could attach a network, and whoever calls reaches from here what the gateway does:
		// this host's root, or an ordinary user, whose connections they are then.
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
		Root: o.flags.paths.state, Profile: profile, Rootless: o.rootless,
		CacheDir: filepath.Join(o.flags.paths.data, filterName), SeccompHelper: siblingProgram("agentsafe-seccomp"),
		LayersDir: filepath.Join(o.flags.paths.data, layersName),
		Warn:      o.note,
	})
	return err
}
