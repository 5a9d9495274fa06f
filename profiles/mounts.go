package profiles

import (
	"fmt"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// isBind reports whether a mount shows a path of the host. Source: runtime-spec 1.3.0, config.md "Mounts".
func isBind(m *specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// planMounts judges every mount and returns the list with kernel file systems made read-only. shared says that the engine
// gives its own files to further containers.
func (p *Profile) planMounts(in []specs.Mount, host HostFacts, vars Variables, shared bool) ([]specs.Mount, []Note, error) {
	if len(host.Mounts) != len(in) {
		return nil, nil, fmt.Errorf("plan mounts: facts about %d of %d mounts", len(host.Mounts), len(in))
	}
	var notes []Note
	out := slices.Clone(in)
	for i := range in {
		var err error
		if isBind(&in[i]) {
			err = p.checkBind(i, &in[i], host.Mounts[i], host.Paths)
		} else {
			err = p.checkFilesystem(i, &in[i], &host)
		}
		if err != nil {
			return nil, nil, err
		}
		if sealed := p.sealed(&in[i]); sealed != nil {
			out[i].Options = sealed
			notes = append(notes, Note{Rule: "mounts", Text: in[i].Destination + " made read-only"})
		}
		if p.namesServers(&in[i], shared) && !isReadonly(in[i].Options) {
			out[i].Options = readonly(in[i].Options)
			notes = append(notes, Note{Rule: "mounts", Text: resolvConf + " made read-only: whom names are asked of is the engine's to say", Routine: true})
		}
		if p.Filesystem.Workspace.mode() == WorkspaceReadonly && p.isWorkspace(&in[i], host.Mounts[i], vars) {
			out[i].Options = readonly(in[i].Options)
			notes = append(notes, Note{Rule: "workspace", Text: in[i].Destination + " made read-only"})
		}
	}
	return out, notes, nil
}

const typeOverlay = "overlay"

const resolvConf = "/etc/resolv.conf"

// namesServers reports whether a mount is the file that the network rules, or the gateway, take the name servers from
// after the task has been able to write it: the gateway reads it again when it has to be started again, and a pod's
// containers have one file, which outlives each of them. A task that names a server of its own there has its port 53
// opened, or the addresses of allowed names made up (TestAttack_OwnNameServer).
func (p *Profile) namesServers(m *specs.Mount, shared bool) bool {
	return isBind(m) && path.Clean("/"+m.Destination) == resolvConf && (shared || p.Network.Mode == NetworkGateway)
}

// checkFilesystem refuses what is no file system of the container's own. A block device, a network share or the host's
// tracing files need no bind mount to get in.
func (p *Profile) checkFilesystem(index int, m *specs.Mount, host *HostFacts) error {
	destination := path.Clean("/" + m.Destination)
	switch m.Type {
	case "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2":
		if !allowedTarget(destination) {
			return p.refuse(mountField(index, m)+" as destination", whyTarget, "")
		}
		return nil
	case "proc", "sysfs":
		// Masked and read-only paths are below /proc and /sys. Root needs no capability to write
		// /proc/sys/kernel/core_pattern of an instance elsewhere.
		if want := "/" + strings.TrimSuffix(m.Type, "fs"); destination != want {
			return p.refuse(mountField(index, m)+" type "+m.Type, "outside of "+want+" it would not be masked", "")
		}
		return nil
	}
	if m.Type == typeOverlay && index < len(host.Mounts) && len(host.Mounts[index].Below) > 0 {
		below := host.Mounts[index].Below
		if !allowedTarget(destination) {
			return p.refuse(mountField(index, m)+" as destination", whyTarget, "")
		}
		for i := range below {
			if err := p.checkSource(bindField(index, m, below[i]), destination, &below[i], host.Paths); err != nil {
				return err
			}
		}
		return nil
	}
	return p.refuse(fmt.Sprintf("%s type %q", mountField(index, m), m.Type),
		"only file systems without a host's device or path behind them are mounted", "")
}

// sealed returns the options of a kernel file system that is not read-only yet, with "ro"; nil if nothing changes. A
// writable cgroup v1 hierarchy starts programs on the host (release_agent, CVE-2022-0492).
func (p *Profile) sealed(m *specs.Mount) []string {
	switch m.Type {
	case "sysfs", "cgroup", "cgroup2":
	default:
		return nil
	}
	if isBind(m) || p.HasPack(PackContainers) && m.Type != "sysfs" {
		return nil
	}
	if isReadonly(m.Options) {
		return nil
	}
	out := slices.DeleteFunc(slices.Clone(m.Options), func(o string) bool { return o == "rw" || o == "rrw" })
	return append(out, "ro")
}

// isReadonly reports what the last word of a mount's options on writing is.
func isReadonly(options []string) bool {
	out := false
	for _, o := range options {
		switch o {
		case "ro", "rro":
			out = true
		case "rw", "rrw":
			out = false
		}
	}
	return out
}

// readonly returns the options for a mount that nothing can be written through, nor through what is mounted below it.
func readonly(options []string) []string {
	out := slices.DeleteFunc(slices.Clone(options), func(o string) bool { return o == "rw" || o == "rrw" || o == "ro" })
	return append(out, "rro")
}

// isWorkspace reports whether a mount is a folder that the task works on: a writable bind mount of a directory, not
// below a directory of the system, where engines mount files of their own, and one of the profile's workspace.paths if
// there are any.
func (p *Profile) isWorkspace(m *specs.Mount, src MountFacts, vars Variables) bool {
	if !isBind(m) || isReadonly(m.Options) || src.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false
	}
	destination := path.Clean("/" + m.Destination)
	switch first, _, _ := strings.Cut(destination[1:], "/"); first {
	case "dev", "proc", "sys", "etc", "run":
		return false
	}
	paths := p.Filesystem.Workspace.Paths
	return len(paths) == 0 || slices.ContainsFunc(paths, func(unsafePath string) bool {
		expanded, ok := vars.expand(unsafePath)
		return ok && expanded == destination
	})
}

// Workspaces returns the indices of the mounts of a spec that are workspaces under the profile. facts are as in
// [HostFacts].
func (p *Profile) Workspaces(s *specs.Spec, facts []MountFacts) []int {
	var out []int
	vars := ExpandVariables(s)
	for i := range s.Mounts {
		if i < len(facts) && p.isWorkspace(&s.Mounts[i], facts[i], vars) {
			out = append(out, i)
		}
	}
	return out
}

// checkBind judges the source by what was opened: its real path, its identity, its type. The names in the spec allow
// nothing; a destination can only refuse.
func (p *Profile) checkBind(index int, m *specs.Mount, src MountFacts, known []PathFacts) error {
	if src.Path == "" || src.Mode == 0 {
		return fmt.Errorf("plan %s: no facts about its source", mountField(index, m))
	}
	if !allowedTarget(path.Clean("/" + m.Destination)) {
		return p.refuse(mountField(index, m)+" as destination", whyTarget, "")
	}
	switch src.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		return p.checkNode(index, m, "b", src)
	case unix.S_IFCHR:
		return p.checkNode(index, m, "c", src)
	}
	return p.checkSource(bindField(index, m, src), m.Destination, &src, known)
}

// checkSource judges a file or directory of the host by what it is. what names it, for errors.
func (p *Profile) checkSource(what, destination string, src *MountFacts, known []PathFacts) error {
	if p.mountGranted(src.Path) {
		return nil
	}
	if src.Mode&unix.S_IFMT == unix.S_IFSOCK {
		// By the name that clients look for as well: the socket of an engine with its own folders may have any name.
		if engineSocket(path.Base(src.Path)) || engineSocket(path.Base(path.Clean("/"+destination))) {
			return p.refuse(what, whyEngine, "host: {mounts: ["+src.Path+"]}")
		}
		if src.Path == "/dev/log" {
			return nil // syslog's socket, below /dev on hosts without systemd
		}
	}
	if src.Engine != "" {
		return p.refuse(what+", the socket of "+src.Engine, whyEngine, "host: {mounts: ["+src.Path+"]}")
	}
	for _, name := range src.names(known) {
		r := judgeHostPath(name)
		if r == nil {
			continue
		}
		if name != src.Path {
			what += ", which is the host's " + name
		}
		return p.refuse(what, r.why+" (host path "+r.path+")", "host: {mounts: ["+src.Path+"]}")
	}
	return p.checkMounted(what, src.Mounted)
}

func mountField(index int, m *specs.Mount) string {
	return fmt.Sprintf("mounts[%d] (%s)", index, m.Destination)
}

// bindField names a bind mount and its real source, and what the spec called it if that is another.
func bindField(index int, m *specs.Mount, src MountFacts) string {
	out := mountField(index, m) + " from " + src.Path
	if src.Path != path.Clean("/"+m.Source) {
		out += " (" + m.Source + ")"
	}
	return out
}

func (p *Profile) mountGranted(source string) bool {
	source = hostName(source)
	return slices.ContainsFunc(p.Host.Mounts, func(m string) bool { return within(hostName(m), source) })
}

// names returns the paths by which the host's rules may know a source: its own, and those of known places that are the
// same file, or on the same instance of a kernel file system.
func (m MountFacts) names(known []PathFacts) []string {
	out := []string{m.Path}
	for _, k := range known {
		if k.Dev != m.Dev {
			continue
		}
		switch {
		case k.Ino == m.Ino:
			out = append(out, k.Path)
		case (k.Path == "/proc" || k.Path == "/sys" || k.Path == "/dev") && !sharesDevice(k, known):
			out = append(out, k.Path+"/...")
		}
	}
	return out
}

// sharesDevice reports whether a place is no file system of its own (a /dev that is a plain directory, say), so that
// its device number tells nothing.
func sharesDevice(k PathFacts, known []PathFacts) bool {
	return slices.ContainsFunc(known, func(o PathFacts) bool { return o.Dev == k.Dev && !within(k.Path, o.Path) })
}

const whyTarget = "the kernel's own directories show what the kernel says and nothing else"

// allowedTarget keeps mounts off the kernel's own directories in the container, where they would replace what is masked
// or answer in the kernel's place (CVE-2019-16884, CVE-2025-52881). Source of the exceptions: runc's and crun's lists
// for lxcfs.
func allowedTarget(destination string) bool {
	if destination != "/sys" && !within("/proc", destination) {
		return true
	}
	switch strings.TrimPrefix(destination, "/proc/") {
	case "cpuinfo", "diskstats", "meminfo", "stat", "swaps", "uptime", "loadavg", "slabinfo", "net/dev",
		"sys/kernel/ns_last_pid", "sys/crypto/fips_enabled":
		return true
	}
	return false
}

// checkNode judges a device node that is bound.
func (p *Profile) checkNode(index int, m *specs.Mount, kind string, src MountFacts) error {
	d := Device{Type: kind, Major: int64(unix.Major(src.Rdev)), Minor: int64(unix.Minor(src.Rdev)), Access: "rw"}
	if defaultDevice(d) || p.deviceGranted(d) {
		return nil
	}
	return p.refuse(fmt.Sprintf("%s, device %s", bindField(index, m, src), d), whyDevice(d), d.key())
}
