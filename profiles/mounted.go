package profiles

import (
	"errors"
	"path"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// kernelFilesystem reports whether a type's files are the kernel's own. Root needs no capability to write to those of
// proc, and a mount of it below a folder, a chroot's say, is not masked.
func kernelFilesystem(kind string) bool {
	switch kind {
	case "proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs", "securityfs", "configfs", "bpf",
		"efivarfs", "pstore", "binfmt_misc", "nfsd", "rpc_pipefs", "resctrl", "selinuxfs":
		return true
	}
	return false
}

// checkMounted judges what comes along with a directory of the host (TestAttack_MountsBelowASource). what names the
// directory, for errors.
func (p *Profile) checkMounted(what string, list []MountedFacts) error {
	for i := range list {
		m := &list[i]
		if p.mountGranted(m.At) {
			continue
		}
		key := "host: {mounts: [" + m.At + "]}"
		if kernelFilesystem(m.Type) {
			return p.refuse(what+", with the "+m.Type+" that is mounted on "+m.At, whyKernel, key)
		}
		for _, name := range append([]string{m.At}, m.Names...) {
			r := judgeHostPath(name)
			if r == nil {
				continue
			}
			known := ""
			if name != m.At {
				known = ", which is the host's " + name
			}
			return p.refuse(what+", with "+m.At+known, r.why+" (host path "+r.path+")", key)
		}
	}
	return nil
}

// checkRoot judges the root file system as it judges what is bound: an engine makes one of an image, and whoever may name a
// directory to it (podman run --rootfs) could name the host's (TestAttack_HostAsRoot). Engines have their root file
// systems below directories that hold others' as well, so a directory is refused if it holds what must not be shown, and
// not for what it lies in, the kernel's own file systems excepted.
func (p *Profile) checkRoot(spec *specs.Spec, host *HostFacts) error {
	root := &host.Root
	switch {
	case spec.Root == nil || p.mountGranted(root.Path):
		return nil
	case root.Path == "":
		return errors.New("plan root file system: no facts about it")
	}
	what, key := "root.path "+root.Path, "host: {mounts: ["+root.Path+"]}"
	if root.Engine != "" {
		return p.refuse(what+", with the socket of "+root.Engine, whyEngine, key)
	}
	for _, name := range root.names(host.Paths) {
		r := judgeRoot(name)
		if r == nil {
			continue
		}
		known := ""
		if name != root.Path {
			known = ", which is the host's " + name
		}
		return p.refuse(what+known, r.why+" (host path "+r.path+")", key)
	}
	return p.checkMounted(what, slices.DeleteFunc(slices.Clone(root.Mounted), func(m MountedFacts) bool {
		return slices.ContainsFunc(spec.Mounts, func(over specs.Mount) bool {
			return within(path.Join(root.Path, path.Clean("/"+over.Destination)), m.At) // covered: nothing inside can take that away
		})
	}))
}
