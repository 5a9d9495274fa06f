package main

import (
	"os"
	"path/filepath"

	"github.com/agentsafe/agentsafe/runtime/container"
)

const (
	cacheDir    = "/var/lib/agentsafe/cache"
	helperName  = "agentsafe-seccomp"
	monitorName = "agentsafe-monitor"
)

// runtime opens the state directory with what the host's administrator configured.
func (a *app) runtime() (*container.Runtime, error) {
	o := container.Options{
		Root: a.root, SystemdCgroup: a.systemdCgroup, CacheDir: cacheDir, SeccompHelper: helperPath(helperName),
		Monitor: helperPath(monitorName), Warn: a.log.warn,
	}
	if a.profile != "" {
		var err error
		if o.Profile, o.Enforcement, err = container.LoadHandler(a.profile); err != nil {
			return nil, err
		}
	}
	return container.Open(o)
}

// helperPath finds a program beside this one.
func helperPath(name string) string {
	exe, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(exe), name)
}
