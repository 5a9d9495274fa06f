package container

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/fs/safepath"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// sources are the opened bind sources of a plan; the index is the mount's.
type sources []*rootfs.Source

func (s sources) close() {
	for _, src := range s {
		if src != nil {
			src.Tree.Close()
		}
	}
}

// openSources opens what the mounts bind, beneath nothing: sources are paths of the host that the engine chose.
func openSources(plan []rootfs.Mount, bundle *os.File) (sources, error) {
	out := make(sources, len(plan))
	for i := range plan {
		if !plan[i].Bind {
			if plan[i].IDMap {
				out.close()
				return nil, invalid(fmt.Sprintf("mounts[%d]", i), "only bind mounts can be idmapped")
			}
			continue
		}
		src, err := plan[i].OpenSource(bundle)
		if err != nil {
			out.close()
			return nil, fmt.Errorf("mounts[%d]: %w", i, err)
		}
		out[i] = src
	}
	return out, nil
}

// donateMounts turns the plan into what the child attaches: sources become descriptors, targets are looked up in the
// root file system. What it opens goes to opened.
func donateMounts(plan []rootfs.Mount, src sources, root *os.File, d *initproc.Donation, opened *[]*os.File) ([]initproc.Mount, error) {
	out := make([]initproc.Mount, 0, len(plan))
	for i := range plan {
		if err := refuseOverProc(&plan[i], src[i]); err != nil {
			return nil, fmt.Errorf("mounts[%d]: %w", i, err)
		}
		m := initproc.Mount{Mount: plan[i], TreeFD: initproc.None}
		if s := src[i]; s != nil {
			m.TreeFD = d.Add(s.Tree)
			m.IsFile = !s.IsDir()
		}
		under := covered(plan[:i], m.Destination)
		if err := locateTarget(&m, root, under); err != nil {
			return nil, fmt.Errorf("mounts[%d]: %w", i, err)
		}
		if m.CopyUp && m.Type == "tmpfs" && !under && m.Exists {
			tree, err := fillTmpfs(&m, root)
			if err != nil {
				return nil, fmt.Errorf("mounts[%d] (tmpcopyup): %w", i, err)
			}
			*opened = append(*opened, tree)
			m.TreeFD = d.Add(tree)
		}
		out = append(out, m)
	}
	return out, nil
}

// refuseOverProc refuses, under every profile, what would answer in the kernel's place, as runc does: on /proc stands proc
// itself, and below it nothing but the files that lxcfs and its like make for a container.
func refuseOverProc(m *rootfs.Mount, src *rootfs.Source) error {
	name, below := strings.CutPrefix(m.Destination, "/proc")
	if !below || name != "" && name[0] != '/' || !m.Bind && (m.Type == "proc" || m.Type == "sysfs") {
		return nil
	}
	switch name {
	case "":
		var st unix.Statfs_t
		if src != nil && unix.Fstatfs(int(src.Tree.Fd()), &st) == nil && st.Type == unix.PROC_SUPER_MAGIC {
			return nil
		}
		return fmt.Errorf("%q cannot be mounted on /proc, it is not of type proc: %w", m.Source, unix.EPERM)
	case "/cpuinfo", "/diskstats", "/meminfo", "/stat", "/swaps", "/uptime", "/loadavg", "/slabinfo", "/net/dev",
		"/sys/kernel/ns_last_pid", "/sys/crypto/fips_enabled":
		return nil
	}
	return fmt.Errorf("%q cannot be mounted on %q, inside /proc, where the kernel answers; allowed are lxcfs's files, such as /proc/meminfo: %w",
		m.Source, m.Destination, unix.EPERM)
}

// reopenSources has the child open the sources of bind mounts itself, for programs that expect mounts to be listed in the
// order of the specification. Under a profile with rules the trees that were judged are mounted, and no others: a path
// may lead to the same file by another way.
func reopenSources(mounts []initproc.Mount, src sources) {
	for i := range mounts {
		if s := src[i]; s != nil && !mounts[i].IDMap && s.Path != "" {
			mounts[i].Reopen, mounts[i].Dev, mounts[i].Ino = s.Path, s.Dev, s.Ino
		}
	}
}

// covered reports whether an earlier mount stands between the root file system and the destination, so that what the
// root file system has there says nothing.
func covered(earlier []rootfs.Mount, destination string) bool {
	for i := range earlier {
		if d := earlier[i].Destination; destination == d || d == "/" || strings.HasPrefix(destination, d+"/") {
			return true
		}
	}
	return false
}

// locateTarget finds out whether the mount point exists, and where its symlinks lead.
func locateTarget(m *initproc.Mount, root *os.File, isCovered bool) error {
	m.Target = m.Destination
	if isCovered {
		return nil
	}
	f, err := safepath.OpenInRoot(root, m.Destination, unix.O_PATH)
	if err == nil {
		defer f.Close()
		m.Exists = true
		return adaptTmpfs(m, f)
	}
	if !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("look up mount point %q: %w", m.Destination, err)
	}
	// A dangling symlink: the mount point is made where it leads, as runc does. /etc/resolv.conf is often one.
	resolved, err := safepath.Resolve(root, m.Destination)
	if err != nil {
		return fmt.Errorf("resolve mount point %q: %w", m.Destination, err)
	}
	m.Target = path.Clean("/" + resolved)
	return nil
}

// adaptTmpfs gives a tmpfs without a mode that of the directory it covers; otherwise the kernel's 1777 stands
// (runc#4971).
func adaptTmpfs(m *initproc.Mount, target *os.File) error {
	if m.Type != "tmpfs" || m.Bind {
		return nil
	}
	for _, o := range m.Options {
		if o.Key == "mode" {
			return nil
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(target.Fd()), &st); err != nil {
		return fmt.Errorf("stat mount point %q: %w", m.Destination, err)
	}
	m.Options = append(append([]rootfs.Option(nil), m.Options...),
		rootfs.Option{Key: "mode", Value: fmt.Sprintf("%o", st.Mode&0o7777)})
	return nil
}

// labelMounts gives the file systems that are made for the container linux.mountLabel, as SELinux wants it: all files of
// the mount have the label. proc, sysfs and cgroups have labels of their own, message queues take none in this way (the child
// labels them, and masks), and of what is bound the engine has labelled the files. Source: runtime-spec 1.3.0, config-linux.md "Mount Label";
// mount(8), "context".
func labelMounts(plan []rootfs.Mount, src sources, label string) {
	for i := range plan {
		m := &plan[i]
		if m.Bind || src[i] != nil {
			continue
		}
		switch m.Type {
		case "tmpfs", "ramfs", "devpts", "overlay":
			m.Options = append(slices.Clip(m.Options), rootfs.Option{Key: "context", Value: label})
		}
	}
}

// ownsDev reports whether /dev is the container's own to furnish: not bound from elsewhere.
func ownsDev(plan []rootfs.Mount) bool {
	for i := range plan {
		if plan[i].Destination == "/dev" {
			return !plan[i].Bind
		}
	}
	return true
}

// defaultDevices every container has. Source: runtime-spec 1.3.0, config-linux.md "Default Devices".
var defaultDevices = []initproc.Device{ //nolint:gochecknoglobals // a constant table
	{Path: "/dev/null", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 3},
	{Path: "/dev/zero", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 5},
	{Path: "/dev/full", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 7},
	{Path: "/dev/random", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 8},
	{Path: "/dev/urandom", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 9},
	{Path: "/dev/tty", Mode: unix.S_IFCHR | 0o666, Major: 5, Minor: 0},
}

// planDevices translates linux.devices and adds the default ones.
func planDevices(in []specs.LinuxDevice) ([]initproc.Device, error) {
	out := append([]initproc.Device(nil), defaultDevices...)
	for i := range in {
		d, err := planDevice(&in[i], fmt.Sprintf("linux.devices[%d]", i))
		if err != nil {
			return nil, err
		}
		replaced := false
		for j := range out {
			if out[j].Path == d.Path {
				out[j], replaced = d, true
			}
		}
		if !replaced {
			out = append(out, d)
		}
	}
	for i := range out {
		out[i].TreeFD = initproc.None
	}
	return out, nil
}

func planDevice(in *specs.LinuxDevice, field string) (initproc.Device, error) {
	d := initproc.Device{Path: path.Clean("/" + in.Path), Mode: 0o666}
	if in.Path == "" || strings.ContainsRune(in.Path, 0) || d.Path == "/" || strings.Contains(in.Path+"/", "/../") {
		return d, invalid(field+".path", fmt.Sprintf("%q is not a path", in.Path))
	}
	if in.FileMode != nil {
		d.Mode = uint32(in.FileMode.Perm())
	}
	switch in.Type {
	case "c", "u":
		d.Mode |= unix.S_IFCHR
	case "b":
		d.Mode |= unix.S_IFBLK
	case "p":
		d.Mode |= unix.S_IFIFO
	default:
		return d, invalid(field+".type", fmt.Sprintf("%q is not c, b, u or p", in.Type))
	}
	const maxMinor = 1<<20 - 1
	if in.Type != "p" && (in.Major < 0 || in.Minor < 0 || in.Major > 4095 || in.Minor > maxMinor) {
		return d, invalid(field, fmt.Sprintf("device number %d:%d is out of range", in.Major, in.Minor))
	}
	d.Major, d.Minor = uint32(in.Major), uint32(in.Minor) //nolint:gosec // checked, and unused for a FIFO
	if in.UID != nil {
		d.UID = *in.UID
	}
	if in.GID != nil {
		d.GID = *in.GID
	}
	return d, nil
}

// bindDevices replaces mknod by bind mounts of the host's nodes, since a user namespace can't make devices.
func bindDevices(devices []initproc.Device, d *initproc.Donation, opened *[]*os.File) ([]initproc.Device, error) {
	out := make([]initproc.Device, 0, len(devices))
	for _, dev := range devices {
		if dev.Mode&unix.S_IFMT == unix.S_IFCHR {
			tree, err := rootfs.OpenDevice(dev.Path, dev.Major, dev.Minor)
			if err != nil {
				return nil, err
			}
			*opened = append(*opened, tree)
			dev.TreeFD = d.Add(tree)
		}
		out = append(out, dev)
	}
	return out, nil
}
