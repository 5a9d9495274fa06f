package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/rootless"
)

const (
	rootDir     = "/run/agentsafe"
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
	if o.Root == "" {
		o.Root = rootDir
	}
	if err := a.asUser(&o); err != nil {
		return nil, err
	}
	if a.profile != "" {
		o.Handler = a.profile
		var err error
		if o.Profile, o.Enforcement, err = container.LoadHandler(a.profile); err != nil {
			return nil, err
		}
	}
	return container.Open(o)
}

// asUser changes what is different for whoever is no root of the host: an ordinary user, or root of a user namespace that
// rootless Podman or this program has made.
func (a *app) asUser(o *container.Options) (err error) {
	switch a.rootless {
	case "auto", "true", "false":
	default:
		return fmt.Errorf("--rootless %q: want true, false or auto", a.rootless)
	}
	o.Rootless = a.rootless == "true" || a.rootless == "auto" && rootless.Active()
	if !rootless.ForUser() {
		return nil
	}
	if a.root == "" {
		if o.Root, err = rootless.StateDir(); err != nil {
			return err
		}
	}
	data, err := rootless.DataDir()
	if err != nil {
		return err
	}
	o.CacheDir, o.LayersDir = filepath.Join(data, "cache"), filepath.Join(data, "layers")
	if rootless.Entered() {
		o.SpecIDs = &container.IDs{}
		if o.SpecIDs.UID, err = rootless.ReadMap("uid_map"); err == nil {
			o.SpecIDs.GID, err = rootless.ReadMap("gid_map")
		}
	}
	return err
}

// enter makes an ordinary user's process root of the user namespace above the container's, or of a new one where there
// is no such container. It returns without an error only if the process is root already.
func (a *app) enter(id string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	rt, err := a.runtime()
	if err != nil {
		return err
	}
	defer rt.Close()
	above, err := rt.UserNamespaceAbove(id)
	if err != nil {
		return err
	}
	return rootless.Enter(above, 1)
}

// helperPath finds a program beside this one.
func helperPath(name string) string {
	exe, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(exe), name)
}
