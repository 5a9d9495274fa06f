package snapshot

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount is one mount as containerd describes it.
type Mount struct {
	Type, Source, Target string
	Options              []string
}

// Plan is a mount as mount(2) takes it.
type Plan struct {
	Source, Target, Type string
	Flags                uintptr
	Data                 string
	// Propagation is set by a call of its own, as the kernel demands.
	Propagation uintptr
	// Dir is the directory that relative paths in Data start from; "" if there are none.
	Dir string
	// UIDMap and GIDMap are the mappings of owners, "" if these stay as they are; of an overlay Lower is then what Data
	// leaves out, its lower directories.
	UIDMap, GIDMap, Lower string
}

type flag struct {
	clear bool
	bits  uintptr
}

func flags() map[string]flag {
	return map[string]flag{
		"async": {true, unix.MS_SYNCHRONOUS}, "atime": {true, unix.MS_NOATIME}, "bind": {false, unix.MS_BIND},
		"defaults": {false, 0}, "dev": {true, unix.MS_NODEV}, "diratime": {true, unix.MS_NODIRATIME},
		"dirsync": {false, unix.MS_DIRSYNC}, "exec": {true, unix.MS_NOEXEC}, "mand": {false, unix.MS_MANDLOCK},
		"noatime": {false, unix.MS_NOATIME}, "nodev": {false, unix.MS_NODEV}, "nodiratime": {false, unix.MS_NODIRATIME},
		"noexec": {false, unix.MS_NOEXEC}, "nomand": {true, unix.MS_MANDLOCK}, "norelatime": {true, unix.MS_RELATIME},
		"nostrictatime": {true, unix.MS_STRICTATIME}, "nosuid": {false, unix.MS_NOSUID},
		"rbind": {false, unix.MS_BIND | unix.MS_REC}, "relatime": {false, unix.MS_RELATIME},
		"remount": {false, unix.MS_REMOUNT}, "ro": {false, unix.MS_RDONLY}, "rw": {true, unix.MS_RDONLY},
		"strictatime": {false, unix.MS_STRICTATIME}, "suid": {true, unix.MS_NOSUID}, "sync": {false, unix.MS_SYNCHRONOUS},
	}
}

func propagations() map[string]uintptr {
	return map[string]uintptr{
		"private": unix.MS_PRIVATE, "rprivate": unix.MS_PRIVATE | unix.MS_REC, "shared": unix.MS_SHARED,
		"rshared": unix.MS_SHARED | unix.MS_REC, "slave": unix.MS_SLAVE, "rslave": unix.MS_SLAVE | unix.MS_REC,
		"unbindable": unix.MS_UNBINDABLE, "runbindable": unix.MS_UNBINDABLE | unix.MS_REC,
	}
}

// maxDataBytes is what mount(2) takes: one page, with its end.
const maxDataBytes = 4095

// PlanMount translates one mount for the directory rootfs.
func PlanMount(m Mount, rootfs string) (Plan, error) {
	p := Plan{Source: m.Source, Type: m.Type, Target: rootfs}
	if strings.Contains(m.Type, "/") || strings.HasPrefix(m.Type, "fuse") {
		return p, fmt.Errorf("mount type %q needs the engine's mount manager: %w", m.Type, unix.ENOSYS)
	}
	if m.Target != "" {
		if !filepath.IsLocal(strings.TrimPrefix(m.Target, "/")) {
			return p, fmt.Errorf("mount target %q is outside of the root file system: %w", m.Target, unix.EINVAL)
		}
		p.Target = filepath.Join(rootfs, m.Target)
	}
	if m.Type == "bind" {
		p.Flags |= unix.MS_BIND
	}
	var data []string
	known, spread := flags(), propagations()
	for _, o := range m.Options {
		name, value, _ := strings.Cut(o, "=")
		switch {
		case name == "uidmap":
			p.UIDMap = value
		case name == "gidmap":
			p.GIDMap = value
		case name == "loop":
			return p, fmt.Errorf("mount option %q of the snapshot is not supported: %w", o, unix.ENOSYS)
		case strings.HasPrefix(o, "X-containerd."), strings.HasPrefix(o, "x-containerd."):
			// A note of the engine to itself.
		case spread[o] != 0:
			p.Propagation = spread[o]
		default:
			f, ok := known[o]
			switch {
			case !ok:
				data = append(data, o)
			case f.clear:
				p.Flags &^= f.bits
			default:
				p.Flags |= f.bits
			}
		}
	}
	var err error
	if data, err = p.planIDMap(data); err != nil {
		return p, err
	}
	p.Data = strings.Join(data, ",")
	if len(p.Data) > maxDataBytes && m.Type == "overlay" {
		p.shorten(data)
	}
	if len(p.Data) > maxDataBytes {
		return p, fmt.Errorf("options of the %s mount have %d bytes, the kernel takes %d: %w", m.Type, len(p.Data), maxDataBytes, unix.E2BIG)
	}
	return p, nil
}

// shorten makes the lower directories relative to the directory that they have in common.
func (p *Plan) shorten(data []string) {
	i := slices.IndexFunc(data, func(o string) bool { return strings.HasPrefix(o, "lowerdir=") })
	if i < 0 {
		return
	}
	lowers := strings.Split(strings.TrimPrefix(data[i], "lowerdir="), ":")
	dir := filepath.Dir(lowers[0])
	for _, l := range lowers {
		for dir != "/" && !strings.HasPrefix(l, dir+"/") {
			dir = filepath.Dir(dir)
		}
	}
	if dir == "/" || !filepath.IsAbs(dir) {
		return
	}
	for j, l := range lowers {
		lowers[j] = strings.TrimPrefix(l, dir+"/")
	}
	data = slices.Clone(data)
	data[i] = "lowerdir=" + strings.Join(lowers, ":")
	p.Data, p.Dir = strings.Join(data, ","), dir
}

// planIDMap checks the mappings, and takes the lower directories, which will be mapped, out of an overlay's options.
func (p *Plan) planIDMap(data []string) ([]string, error) {
	if p.UIDMap == "" && p.GIDMap == "" {
		return data, nil
	}
	for name, value := range map[string]string{"uidmap": p.UIDMap, "gidmap": p.GIDMap} {
		if value == "" {
			return nil, fmt.Errorf("mount option %s is missing: owners are mapped with both or not at all: %w", name, unix.EINVAL)
		}
		if _, err := parseIDMap(value); err != nil {
			return nil, fmt.Errorf("mount option %s: %w", name, err)
		}
	}
	if p.Type != "overlay" {
		return data, nil
	}
	i := slices.IndexFunc(data, func(o string) bool { return strings.HasPrefix(o, "lowerdir=") })
	if i < 0 {
		return nil, fmt.Errorf("an overlay with mapped owners has no lowerdir: %w", unix.EINVAL)
	}
	p.Lower = strings.TrimPrefix(data[i], "lowerdir=")
	return slices.Delete(slices.Clone(data), i, i+1), nil
}
