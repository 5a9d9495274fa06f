package container

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A health check of Docker's reaches the runtime as an exec like any other: the same environment, user, directory and
// streams as `docker exec` without options (moby, daemon/health.go). What tells it apart is the command, which Docker keeps
// in config.v2.json of its directory of the container. That directory is known: resolv.conf, hostname and hosts are bound
// from it, or from its neighbour where the network is another container's. Podman's exec and the kubelet's say nothing of
// the kind, and their engines keep nothing that a runtime could find; for those there is exec.base of the profile.

// dockerNamespace is containerd's namespace that dockerd uses; both its bundles and its states lie below it.
const dockerNamespace = "moby"

// dockerFiles are what dockerd binds into every container from the container's directory.
var dockerFiles = []string{"/etc/resolv.conf", "/etc/hostname", "/etc/hosts"} //nolint:gochecknoglobals // a constant table

// dockerConfig is what is read of config.v2.json.
type dockerConfig struct {
	ID     string `json:"ID"`
	Config struct {
		Healthcheck *struct {
			Test []string `json:"Test"`
		} `json:"Healthcheck"`
		Shell []string `json:"Shell"`
	} `json:"Config"`
}

// healthCheck returns the command by which the engine checks the container's health; nil if there is none, or none that
// can be found out.
func (cr *creation) healthCheck() []string {
	if filepath.Base(filepath.Dir(cr.bundle.Name())) != dockerNamespace {
		return nil
	}
	for i := range cr.spec.Mounts {
		m := &cr.spec.Mounts[i]
		if !slices.Contains(dockerFiles, m.Destination) || filepath.Base(m.Source) != filepath.Base(m.Destination) {
			continue
		}
		config, err := readDockerConfig(filepath.Join(filepath.Dir(filepath.Dir(m.Source)), cr.o.ID))
		if err == nil && config.ID == cr.o.ID {
			return config.healthCheck()
		}
	}
	return nil
}

// readDockerConfig reads what dockerd, and nobody else, can have written about a container.
func readDockerConfig(dir string) (*dockerConfig, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fd, err := unix.Openat(int(d.Fd()), "config.v2.json", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open config.v2.json: %w", err)
	}
	f := os.NewFile(uintptr(fd), "config.v2.json")
	defer f.Close()
	const othersWrite = 0o022
	for _, file := range []*os.File{d, f} {
		var st unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &st); err != nil || st.Uid != uint32(os.Geteuid()) || st.Mode&othersWrite != 0 { //nolint:gosec // ids are 32 bits
			return nil, fmt.Errorf("%q is not the engine's alone: %w", file.Name(), unix.EPERM)
		}
	}
	const most = 1 << 20
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, fmt.Errorf("read config.v2.json: %w", err)
	}
	c := &dockerConfig{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("decode config.v2.json: %w", err)
	}
	return c, nil
}

// healthCheck returns the arguments of the exec that Docker makes of a health check (moby, daemon/health.go, getProbe and
// cmdProbe.run).
func (c *dockerConfig) healthCheck() []string {
	h := c.Config.Healthcheck
	if h == nil || len(h.Test) < 2 {
		return nil
	}
	switch h.Test[0] {
	case "CMD":
		return h.Test[1:]
	case "CMD-SHELL":
		shell := c.Config.Shell
		if len(shell) == 0 {
			shell = []string{"/bin/sh", "-c"}
		}
		return append(slices.Clone(shell), h.Test[1:]...)
	}
	return nil
}

// onBase reports whether an exec works on the base where others get a layer of their own: the engine's health check, and
// what the profile names.
func (d *Detail) onBase(process *specs.Process) bool {
	return len(d.HealthCheck) > 0 && slices.Equal(process.Args, d.HealthCheck) ||
		len(d.Policy.Profile.Exec.Base) > 0 && slices.Contains(d.Policy.Profile.Exec.Base, strings.Join(process.Args, " "))
}
