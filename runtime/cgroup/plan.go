package cgroup

import (
	"path/filepath"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// The two ways of making a cgroup; as State.Driver.
const (
	DriverFS      = "cgroupfs"
	DriverSystemd = "systemd"
)

const fieldPath = "linux.cgroupsPath"

// Input is what a plan is made of.
type Input struct {
	// ID is the container's; already validated by the caller.
	ID string
	// CgroupsPath is linux.cgroupsPath: a path (relative ones are below the caller's own cgroup), or
	// slice:prefix:name with Systemd. Empty: see "Default path" in the package documentation.
	CgroupsPath string
	// Resources is linux.resources; may be nil.
	Resources *specs.LinuxResources
	// Systemd chooses the systemd driver (--systemd-cgroup).
	Systemd bool
	// Rootless: the caller is not root in the initial user namespace. Device rules are then best effort, because such a
	// container can't make device nodes anyway.
	Rootless bool
	// OwnerUID, if set, becomes the owner of a v2 cgroup's directory and delegation files, so that root of a user
	// namespace can manage sub-cgroups. Host uid.
	OwnerUID *int
	// Host is what ReadHost returned.
	Host Host
}

// State is what must be kept to find and manage a container's cgroups from another process. It is plain data.
type State struct {
	Driver  string `json:"driver"`
	Unified bool   `json:"unified"`
	// Paths holds absolute directories. v1: by controller, "" being the unified hierarchy of a hybrid host. v2: only "".
	Paths map[string]string `json:"paths"`
	// Late holds v1 directories that are not created until a limit needs them.
	Late map[string]string `json:"late,omitempty"`
	// Cgroup is the library's configuration with the resources in force.
	Cgroup *cgroups.Cgroup `json:"cgroup"`
}

// Config is a plan: the future state, and which controllers it can't do without.
type Config struct {
	State
	needs []need
	// cpusetTop is the topmost directory of the cgroup in the cpuset hierarchy; empty if cpuset is not optional.
	cpusetTop string
}

// need is a controller that a field of the configuration requires.
type need struct{ controller, field string }

// Plan compiles in to a Config; nil if nothing is delegated to a rootless caller, and nothing was asked for that needs a
// cgroup. It makes no system call. Errors are *FieldError; they match ErrUnsupported if the
// host lacks what a field asks for.
func Plan(in Input) (*Config, error) {
	if in.Rootless && !in.Systemd {
		in.Host = in.Host.delegated()
	}
	cfg := &Config{State: State{Driver: DriverFS, Unified: in.Host.Unified}}
	cfg.Cgroup = &cgroups.Cgroup{
		Resources: &cgroups.Resources{}, Systemd: in.Systemd, Rootless: in.Rootless, OwnerUID: in.OwnerUID,
	}
	var err error
	if in.Systemd {
		cfg.Driver = DriverSystemd
		err = cfg.planUnit(&in)
	} else {
		err = cfg.planPaths(&in)
	}
	if err != nil {
		return nil, err
	}
	if cfg.needs, err = planResources(in.Resources, &in.Host, cfg.Cgroup.Resources); err != nil {
		return nil, err
	}
	var rules []specs.LinuxDeviceCgroup
	if in.Resources != nil {
		rules = in.Resources.Devices
	}
	if cfg.Cgroup.Resources.Devices, err = planDevices(rules); err != nil {
		return nil, err
	}
	if !in.Host.Unified && !in.Rootless && !in.Host.has("devices") {
		return nil, unsupportedField("linux.resources.devices", "controller devices is not mounted")
	}
	if len(cfg.Paths) == 0 && in.Rootless && !in.Systemd {
		return nil, nil //nolint:nilnil // no cgroup is one of the answers
	}
	if cfg.Cgroup.CpusetCpus != "" || cfg.Cgroup.CpusetMems != "" {
		cfg.cpusetTop = ""
	}
	return cfg, nil
}

// planPaths computes the directories of the cgroupfs driver.
func (cfg *Config) planPaths(in *Input) error {
	path := in.CgroupsPath
	if path == "" {
		path = "agentsafe-" + in.ID
	}
	if err := checkPath(path); err != nil {
		return err
	}
	// Path tells the library that the caller chose this cgroup, so that a rootless failure is an error.
	cfg.Cgroup.Path = path
	cfg.Paths = map[string]string{}
	if in.Host.Unified && in.Host.withheld {
		return nil
	}
	if in.Host.Unified {
		parent := "/"
		if !filepath.IsAbs(path) {
			parent = filepath.Dir(in.Host.Own)
		}
		cfg.Paths[""] = filepath.Join(mountRoot, parent, path)
		return nil
	}
	for _, h := range in.Host.Hierarchies {
		parent := "/"
		if !filepath.IsAbs(path) {
			parent = h.Own
		}
		below := filepath.Join(parent, path)
		for _, c := range h.Controllers {
			cfg.Paths[c] = filepath.Join(h.Mount, below)
		}
		if len(h.Controllers) == 1 && h.Controllers[0] == "cpuset" {
			top, _, _ := strings.Cut(strings.TrimPrefix(below, "/"), "/")
			cfg.cpusetTop = filepath.Join(h.Mount, top)
		}
	}
	return nil
}

// checkPath refuses what filepath.Join would resolve to somewhere else (".." in sub-cgroups: oci-runtime advisories of
// several runtimes; TestPlanRefuses) and what is no path of its own.
func checkPath(path string) error {
	if len(path) > 3072 {
		return badField(fieldPath, "%d bytes long, at most 3072", len(path))
	}
	if strings.ContainsAny(path, "\x00\n") {
		return badField(fieldPath, "%q has a line feed or a zero byte", path)
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == ".." {
			return badField(fieldPath, `%q has ".."`, path)
		}
		if len(part) > 255 {
			return badField(fieldPath, "a name of %d bytes, at most 255", len(part))
		}
	}
	if clean := filepath.Clean(path); clean == "/" || clean == "." {
		return badField(fieldPath, "%q is the root cgroup or the caller's own", path)
	}
	return nil
}

// planUnit computes unit and directories of the systemd driver. Source: runc, docs/systemd.md.
func (cfg *Config) planUnit(in *Input) error {
	cg := cfg.Cgroup
	cg.ScopePrefix, cg.Name = "agentsafe", in.ID
	if in.CgroupsPath != "" {
		parts := strings.Split(in.CgroupsPath, ":")
		if len(parts) != 3 {
			return badField(fieldPath, "%q: the systemd driver wants slice:prefix:name", in.CgroupsPath)
		}
		cg.Parent, cg.ScopePrefix, cg.Name = parts[0], parts[1], parts[2]
	}
	if cg.Name == "" {
		return badField(fieldPath, "%q names no unit", in.CgroupsPath)
	}
	for _, part := range []string{cg.Parent, cg.ScopePrefix, cg.Name} {
		if !isUnitName(part) {
			return badField(fieldPath, "%q is no systemd unit name", part)
		}
	}
	slice := "system.slice"
	if cg.Parent != "" {
		expanded, err := systemd.ExpandSlice(cg.Parent)
		if err != nil {
			return badField(fieldPath, "%v", err)
		}
		slice = expanded
	}
	unit := cg.ScopePrefix + "-" + cg.Name + ".scope"
	if strings.HasSuffix(cg.Name, ".slice") {
		unit = cg.Name
	}
	if len(unit) > 255 {
		return badField(fieldPath, "unit name of %d bytes, at most 255", len(unit))
	}
	if in.Host.Unified {
		cfg.Paths = map[string]string{"": filepath.Join(mountRoot, slice, unit)}
		if in.Rootless {
			// The user manager's own cgroup is known only to it: the library asks when the unit is started.
			cfg.Paths = map[string]string{}
		}
		return nil
	}
	if in.Rootless {
		return unsupportedField(fieldPath, "the systemd driver needs root on cgroup v1")
	}
	cfg.Paths = map[string]string{}
	for _, h := range in.Host.Hierarchies {
		for _, c := range h.Controllers {
			cfg.Paths[c] = filepath.Join(h.Mount, slice, unit)
		}
	}
	return nil
}

func isUnitName(s string) bool {
	for _, c := range s {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.ContainsRune(`:-_.\@+`, c):
		default:
			return false
		}
	}
	return true
}
