package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mountRoot is where every distribution mounts cgroups; the library assumes it too.
const mountRoot = "/sys/fs/cgroup"

// Hierarchy is one mounted cgroup v1 hierarchy, or the unified one of a hybrid host.
type Hierarchy struct {
	// Controllers are the library's keys: "cpu", "cpuacct"; "name=systemd"; "" for the unified hierarchy.
	Controllers []string
	// Mount is the absolute mount point.
	Mount string
	// Own is the cgroup of this process below Mount, absolute, "/" for its root.
	Own string
}

// Host is what a plan has to know about cgroups of this machine. It is plain data.
type Host struct {
	// Unified is set on a pure cgroup v2 host.
	Unified bool
	// Hierarchies of a v1 or hybrid host; empty if Unified.
	Hierarchies []Hierarchy
	// Own is the cgroup of this process and Controllers what the root of the unified hierarchy offers; v2 only.
	Own         string
	Controllers []string
	// Writable are the directories of Hierarchies' own cgroups, and on v2 of the one that a cgroup without a path would
	// come into, in which this process may make cgroups. Root may everywhere, and need not ask.
	Writable []string
	// rootless says that what is not Writable was taken out; on v2, withheld that this is all: see delegated.
	rootless, withheld bool
}

// AskWritable fills in Writable, and on v2 makes Controllers those that such a directory has.
func (h *Host) AskWritable() {
	for _, dir := range h.parents() {
		if unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK, unix.AT_EACCESS) == nil {
			h.Writable = append(h.Writable, dir)
		}
	}
	if len(h.Writable) > 0 && h.Unified {
		if data, err := os.ReadFile(h.Writable[0] + "/cgroup.controllers"); err == nil {
			h.Controllers = strings.Fields(string(data))
		}
	}
}

// Delegates reports whether a rootless caller may limit by a controller ("memory", "pids", "cpu") in a cgroup without a
// path, as far as the host tells: on v2 the cgroup above may still not pass it on.
func (h *Host) Delegates(controller string) bool {
	d := h.delegated()
	return d.has(controller)
}

// parents are where cgroups without a path come into: one for each hierarchy, in their order.
func (h *Host) parents() []string {
	if h.Unified {
		return []string{filepath.Join(mountRoot, filepath.Dir(h.Own))}
	}
	var out []string
	for _, hier := range h.Hierarchies {
		out = append(out, filepath.Join(hier.Mount, hier.Own))
	}
	return out
}

// delegated returns the host as a rootless caller can use it: with the hierarchies alone that it may make cgroups in.
func (h *Host) delegated() Host {
	out := *h
	out.Hierarchies, out.rootless, out.withheld = nil, true, h.Unified
	for i, dir := range h.parents() {
		switch {
		case !slices.Contains(h.Writable, dir):
		case h.Unified:
			out.withheld = false
		default:
			out.Hierarchies = append(out.Hierarchies, h.Hierarchies[i])
		}
	}
	if out.withheld {
		out.Controllers = nil
	}
	return out
}

// readHost looks at /sys/fs/cgroup and /proc/self/cgroup. Source: cgroups(7), /proc/PID/cgroup.
func readHost() (Host, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Host{}, fmt.Errorf("read own cgroup: %w", err)
	}
	if fsType(mountRoot) == unix.CGROUP2_SUPER_MAGIC {
		return readUnifiedHost(string(own))
	}
	var h Host
	for line := range strings.Lines(string(own)) {
		id, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		names, path, ok := strings.Cut(rest, ":")
		if !ok {
			return Host{}, fmt.Errorf("parse /proc/self/cgroup: line %q", line)
		}
		if hier, ok := findHierarchy(id, names, path); ok {
			h.Hierarchies = append(h.Hierarchies, hier)
		}
	}
	if len(h.Hierarchies) == 0 {
		return Host{}, fmt.Errorf("find cgroups below %s: %w: none is mounted", mountRoot, ErrUnsupported)
	}
	return h, nil
}

func readUnifiedHost(own string) (Host, error) {
	h := Host{Unified: true, Own: "/"}
	for line := range strings.Lines(own) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			h.Own = ownBelow(mountRoot, strings.TrimSuffix(path, "\n"))
		}
	}
	data, err := os.ReadFile(mountRoot + "/cgroup.controllers")
	if err != nil {
		return Host{}, fmt.Errorf("read cgroup controllers: %w", err)
	}
	h.Controllers = strings.Fields(string(data))
	return h, nil
}

// findHierarchy returns where the hierarchy of one line of /proc/self/cgroup is mounted, or false if it isn't.
func findHierarchy(id, names, own string) (Hierarchy, bool) {
	if id == "0" {
		mount := mountRoot + "/unified"
		if fsType(mount) != unix.CGROUP2_SUPER_MAGIC {
			return Hierarchy{}, false
		}
		return Hierarchy{Controllers: []string{""}, Mount: mount, Own: ownBelow(mount, own)}, true
	}
	controllers := strings.Split(names, ",")
	if strings.HasPrefix(names, "name=") && names != "name=systemd" {
		return Hierarchy{}, false
	}
	// cpu and cpuacct are usually mounted together on cpu,cpuacct with symlinks beside it; the order of the names in the
	// mount point is the distribution's choice, so each single name is tried too.
	for _, dir := range append([]string{strings.TrimPrefix(names, "name=")}, controllers...) {
		mount := mountRoot + "/" + dir
		if fsType(mount) == unix.CGROUP_SUPER_MAGIC {
			return Hierarchy{Controllers: controllers, Mount: mount, Own: ownBelow(mount, own)}, true
		}
	}
	return Hierarchy{}, false
}

// ownBelow returns own if it can be seen below mount. In a container without a cgroup namespace the mount is a bind of
// the container's cgroup, which /proc still names by its path on the host: then what is seen is the own cgroup itself.
func ownBelow(mount, own string) string {
	if own == "/" || strings.HasPrefix(own, "/..") {
		return "/"
	}
	if err := unix.Access(filepath.Join(mount, own), unix.F_OK); err != nil {
		return "/"
	}
	return own
}

func fsType(path string) int64 {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0
		}
		return int64(st.Type) //nolint:unconvert // 32 bits on 386
	}
}

// hierarchy returns the hierarchy that holds controller.
func (h *Host) hierarchy(controller string) (Hierarchy, bool) {
	for _, hier := range h.Hierarchies {
		if slices.Contains(hier.Controllers, controller) {
			return hier, true
		}
	}
	return Hierarchy{}, false
}

// has says whether the host offers a controller by its v1 name ("blkio" is "io" on v2).
func (h *Host) has(controller string) bool {
	if !h.Unified {
		_, ok := h.hierarchy(controller)
		return ok
	}
	for _, c := range h.Controllers {
		if c == unifiedName(controller) {
			return true
		}
	}
	return false
}

func unifiedName(controller string) string {
	if controller == "blkio" {
		return "io"
	}
	return controller
}
