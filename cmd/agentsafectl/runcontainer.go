package main

import (
	"fmt"
	"path/filepath"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// openRuntime opens the runtime under the profile that the caller named.
func (o *operation) openRuntime() error {
	profile, err := profiles.Builtin(o.flags.profile)
	if err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	o.runtime, err = container.Open(container.Options{
		Root: o.flags.paths.state, Profile: profile,
		CacheDir: filepath.Join(o.flags.paths.data, filterName), SeccompHelper: siblingProgram("agentsafe-seccomp"),
		Warn: o.warn,
	})
	return err
}
