package container

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
)

// expandCgroupMounts replaces mounts of type cgroup by what shows the container's own cgroups on this host. With a
// cgroup namespace these are cgroup file systems, which the child mounts once it is inside; without, they are bind
// mounts of the container's directories, read-only unless the spec says otherwise.
// Source: runtime-spec 1.3.0, config-linux.md "cgroup ownership"; cgroups(7), cgroup_namespaces(7).
func (cr *creation) expandCgroupMounts() ([]rootfs.Mount, sources, error) {
	plan := make([]rootfs.Mount, 0, len(cr.plan))
	src := make(sources, 0, len(cr.plan))
	for i := range cr.plan {
		if !cr.plan[i].Cgroup {
			plan, src = append(plan, cr.plan[i]), append(src, cr.src[i])
			continue
		}
		if cr.noCgroup {
			plan, src = append(plan, emptyMount(cr.plan[i].Destination)), append(src, nil)
			continue
		}
		host, err := cgroup.ReadHost()
		if err != nil {
			return nil, nil, err
		}
		mounts, opened, err := cr.cgroupMounts(&cr.plan[i], &host)
		if err != nil {
			return nil, nil, fmt.Errorf("mounts[%d] (destination %q): %w", i, cr.plan[i].Destination, err)
		}
		plan, src = append(plan, mounts...), append(src, opened...)
	}
	return plan, src, nil
}

// emptyMount stands for the cgroups of a container that has none: the caller's own, which a cgroup file system would show,
// are nobody's business there.
func emptyMount(destination string) rootfs.Mount {
	return rootfs.Mount{
		Destination: destination, Type: "tmpfs", Source: "tmpfs",
		Attr:    rootfs.Attr{Set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC},
		Options: []rootfs.Option{{Key: "mode", Value: "755"}, {Key: "size", Value: "4k"}},
	}
}

func (cr *creation) cgroupMounts(m *rootfs.Mount, host *cgroup.Host) ([]rootfs.Mount, sources, error) {
	if host.Unified || m.Type == "cgroup2" {
		one := *m
		one.Type, one.Options = "cgroup2", nil
		if cr.ns.cgroupNS || cr.ns.joined["cgroup"] != nil {
			one.Source = "cgroup"
			return []rootfs.Mount{one}, sources{nil}, nil
		}
		return cr.bindCgroups([]rootfs.Mount{one}, []string{""})
	}
	top := rootfs.Mount{
		Destination: m.Destination, Type: "tmpfs", Source: "tmpfs", Propagation: m.Propagation,
		Attr:    rootfs.Attr{Set: m.Attr.Set &^ unix.MOUNT_ATTR_RDONLY, Clear: m.Attr.Clear},
		Options: []rootfs.Option{{Key: "mode", Value: "755"}, {Key: "size", Value: "64k"}},
	}
	if m.Attr.Set&unix.MOUNT_ATTR_RDONLY != 0 {
		// Only once its directories are made.
		cr.sealed = append(cr.sealed, m.Destination)
	}
	mounts, src := []rootfs.Mount{top}, sources{nil}
	var binds []rootfs.Mount
	var controllers []string
	for _, h := range host.Hierarchies {
		name := filepath.Base(h.Mount)
		one := rootfs.Mount{
			Destination: filepath.Join(m.Destination, name), Source: "cgroup", Attr: m.Attr,
			Propagation: m.Propagation, PropagationRec: m.PropagationRec, Cgroup: true,
		}
		if !cr.ns.cgroupNS {
			binds, controllers = append(binds, one), append(controllers, h.Controllers[0])
			continue
		}
		one.Type = "cgroup"
		switch {
		case h.Controllers[0] == "":
			one.Type = "cgroup2"
		case strings.HasPrefix(h.Controllers[0], "name="):
			one.Options = []rootfs.Option{
				{Key: "none", Flag: true}, {Key: "name", Value: strings.TrimPrefix(h.Controllers[0], "name=")},
			}
		default:
			for _, c := range h.Controllers {
				one.Options = append(one.Options, rootfs.Option{Key: c, Flag: true})
			}
		}
		mounts, src = append(mounts, one), append(src, nil)
	}
	if len(binds) > 0 {
		bound, opened, err := cr.bindCgroups(binds, controllers)
		if err != nil {
			return nil, nil, err
		}
		mounts, src = append(mounts, bound...), append(src, opened...)
	}
	return mounts, src, nil
}

// bindCgroups turns the mounts into bind mounts of the container's own cgroup directories.
func (cr *creation) bindCgroups(mounts []rootfs.Mount, controllers []string) ([]rootfs.Mount, sources, error) {
	group, err := cr.takeGroup()
	if err != nil {
		return nil, nil, err
	}
	paths := group.State().Paths
	var out []rootfs.Mount
	var src sources
	for i := range mounts {
		path, ok := paths[controllers[i]]
		if !ok {
			continue
		}
		one := mounts[i]
		one.Bind, one.Type, one.Source, one.Options, one.Cgroup = true, "bind", path, nil, false
		// A container without a cgroup namespace could write to what the engine manages (CVE-2023-25809).
		if one.Attr.Clear&unix.MOUNT_ATTR_RDONLY == 0 {
			one.Attr.Set |= unix.MOUNT_ATTR_RDONLY
		}
		s, err := one.OpenSource(cr.bundle)
		if err != nil {
			src.close()
			return nil, nil, err
		}
		cr.opened = append(cr.opened, s.Tree)
		out, src = append(out, one), append(src, s)
	}
	return out, src, nil
}
