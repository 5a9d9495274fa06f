package cgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"golang.org/x/sys/unix"
)

// Create makes the cgroups of cfg and applies its limits; no process is needed. On failure it removes what it made,
// parents included. Parents that it made stay when it succeeds, as with every runtime: others may have come below them.
//
// Errors: ErrNotEmpty and ErrFrozen if the cgroup exists already and is in use, ErrUnsupported (see DelegationError) if a
// controller can't be written.
func Create(cfg *Config) (*Group, error) {
	g, err := newGroup(cfg.State)
	if err != nil {
		return nil, err
	}
	if g.state.Driver == DriverSystemd {
		if err := g.checkUnused(g.dirs()); err != nil {
			return nil, err
		}
		g.unit = true
		return g, nil
	}
	made := &madeDirs{}
	if err := g.create(cfg, made); err != nil {
		made.remove()
		return nil, g.explain(err)
	}
	return g, nil
}

func (g *Group) create(cfg *Config, made *madeDirs) error {
	if g.state.Unified {
		if err := g.createUnified(cfg, made, mountRoot); err != nil {
			return err
		}
	} else if err := g.createLegacy(cfg, made); err != nil {
		return err
	}
	if err := g.manager.Set(g.state.Cgroup.Resources); err != nil {
		return fmt.Errorf("set limits: %w", err)
	}
	return nil
}

// createLegacy makes the directories of all v1 hierarchies.
func (g *Group) createLegacy(cfg *Config, made *madeDirs) error {
	// An ancestor in the cpuset hierarchy may hold the container to some processors: then it has to be joined.
	if cfg.cpusetTop != "" && (cfg.cpusetTop == g.state.Paths["cpuset"] || !exists(cfg.cpusetTop)) && !exists(g.state.Paths["cpuset"]) {
		g.state.Late = map[string]string{"cpuset": g.state.Paths["cpuset"]}
		delete(g.state.Paths, "cpuset")
		if err := g.setManager(); err != nil {
			return err
		}
	}
	var found []string
	for _, dir := range g.dirs() {
		existed, err := made.add(dir)
		if err != nil && !g.isOptional(dir, err) {
			return err
		}
		if existed {
			found = append(found, dir)
		}
	}
	if err := g.checkUnused(found); err != nil {
		return err
	}
	if dir := g.state.Paths["cpuset"]; dir != "" {
		return fillCPUSet(dir, g.state.Cgroup.Resources)
	}
	return nil
}

// fillCPUSet gives a v1 cpuset, and the parents made for it, the processors and memory nodes of its parent where it has
// none: it would take no process.
func fillCPUSet(dir string, r *cgroups.Resources) error {
	if err := new(fs.CpusetGroup).ApplyDir(dir, r, -1); err != nil {
		return fmt.Errorf("fill cpuset %s: %w", dir, err)
	}
	return nil
}

// createUnified makes the v2 directory below root, which is the mount point, and hands all controllers down to it.
func (g *Group) createUnified(cfg *Config, made *madeDirs, root string) error {
	dir := g.state.Paths[""]
	existed, err := made.add(dir)
	if err != nil {
		return err
	}
	if existed {
		if err := g.checkUnused([]string{dir}); err != nil {
			return err
		}
	}
	want, err := os.ReadFile(root + "/cgroup.controllers")
	if err != nil {
		return fmt.Errorf("read cgroup controllers: %w", err)
	}
	has, err := os.ReadFile(dir + "/cgroup.controllers")
	if err != nil {
		return fmt.Errorf("read cgroup controllers: %w", err)
	}
	if string(has) != string(want) {
		handDown(root, dir, strings.Fields(string(want)))
		if has, err = os.ReadFile(dir + "/cgroup.controllers"); err != nil {
			return fmt.Errorf("read cgroup controllers: %w", err)
		}
	}
	if err := checkDelegated(cfg.needs, dir, strings.Fields(string(has))); err != nil {
		return err
	}
	return g.chown(dir)
}

// handDown enables controllers in every cgroup between root and dir. Failures show in what dir then has: an ancestor may
// not be ours to change, or hold processes.
func handDown(root, dir string, controllers []string) {
	below := strings.Split(strings.TrimPrefix(dir, root+"/"), "/")
	for i := range below {
		at := filepath.Join(root, filepath.Join(below[:i]...))
		if cgroups.WriteFile(at, "cgroup.subtree_control", "+"+strings.Join(controllers, " +")) == nil {
			continue
		}
		for _, c := range controllers {
			_ = cgroups.WriteFile(at, "cgroup.subtree_control", "+"+c)
		}
	}
}

func checkDelegated(needs []need, dir string, has []string) error {
	for _, n := range needs {
		if !slices.Contains(has, unifiedName(n.controller)) {
			return unsupportedField(n.field, "controller %s is not delegated to %s (has: %s)",
				unifiedName(n.controller), dir, strings.Join(has, " "))
		}
	}
	return nil
}

// chown gives a delegated cgroup to root of the container's user namespace. Source: cgroup-v2.rst, Delegation.
func (g *Group) chown(dir string) error {
	uid := g.state.Cgroup.OwnerUID
	if uid == nil {
		return nil
	}
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		if err := unix.Fchownat(unix.AT_FDCWD, filepath.Join(dir, name), *uid, -1, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("chown cgroup %s: %w", filepath.Join(dir, name), err)
		}
	}
	return nil
}

// checkUnused refuses directories that hold processes, in sub-cgroups too (they would die with the container), and a
// frozen one, in which the container would never start. Source: runtime-spec 1.3.0, config-linux.md, Cgroup ownership.
func (g *Group) checkUnused(found []string) error {
	for _, dir := range found {
		pids, err := readPIDs(dir, true)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list processes of existing cgroup %s: %w", dir, err)
		}
		if len(pids) > 0 {
			return fmt.Errorf("create cgroup %s: %w: %d processes, the first is %d", dir, ErrNotEmpty, len(pids), pids[0])
		}
	}
	if len(found) > 0 && g.frozen() {
		return fmt.Errorf("create cgroup %s: %w", g.mainDir(), ErrFrozen)
	}
	return nil
}

// explain adds to a permission error what would help.
func (g *Group) explain(err error) error {
	var pathErr *os.PathError
	if !errors.As(err, &pathErr) {
		return err
	}
	if !errors.Is(err, os.ErrPermission) && !errors.Is(err, unix.EROFS) {
		return err
	}
	controller := ""
	for c, dir := range g.state.Paths {
		if pathErr.Path == dir || strings.HasPrefix(pathErr.Path, dir+"/") || strings.HasPrefix(dir, pathErr.Path+"/") {
			controller = c
			break
		}
	}
	return &DelegationError{Controller: controller, Path: pathErr.Path, Rootless: g.state.Cgroup.Rootless, Err: err}
}

// startUnit starts the systemd unit with its first process and applies the limits. If they can't be applied the unit is
// stopped, which takes the process along: it must not run without them.
func (g *Group) startUnit(pid int) error {
	if err := g.manager.Apply(pid); err != nil {
		_ = g.manager.Destroy()
		return fmt.Errorf("start systemd unit for process %d: %w", pid, err)
	}
	if err := g.manager.Set(g.state.Cgroup.Resources); err != nil {
		_ = g.manager.Destroy()
		return fmt.Errorf("set limits of systemd unit: %w", err)
	}
	g.state.Paths = maps.Clone(g.manager.GetPaths())
	g.unit = false
	return nil
}

// madeDirs remembers directories in the order of their making.
type madeDirs struct{ list []string }

// add makes dir and its missing parents, and says whether dir was there before. That a parent is there is no error, also
// if somebody made it meanwhile: containers are created in parallel.
func (m *madeDirs) add(dir string) (existed bool, err error) {
	for range 10 {
		err := unix.Mkdir(dir, 0o755)
		if err == nil {
			m.list = append(m.list, dir)
			return false, nil
		}
		switch {
		case errors.Is(err, unix.EEXIST):
			return true, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.ENOENT) || filepath.Dir(dir) == mountRoot:
			return false, &os.PathError{Op: "create cgroup", Path: dir, Err: err}
		}
		// Once more around if the parent vanishes again: its last container may just be going.
		if _, err := m.add(filepath.Dir(dir)); err != nil {
			return false, err
		}
	}
	return false, &os.PathError{Op: "create cgroup", Path: dir, Err: unix.ENOENT}
}

func (m *madeDirs) remove() {
	for _, dir := range slices.Backward(m.list) {
		_ = unix.Rmdir(dir)
	}
}
