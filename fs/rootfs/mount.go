package rootfs

import (
	"fmt"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Option is one parameter of a file system, for fsconfig(2). An empty Value with Flag set is FSCONFIG_SET_FLAG.
type Option struct {
	Key, Value string
	Flag       bool
}

// Attr is what mount_setattr(2) changes: set and clear are MOUNT_ATTR_* bits.
type Attr struct{ Set, Clear uint64 }

// Mount is one mount as the kernel's new mount API takes it.
type Mount struct {
	// Destination is absolute and clean, as the spec gave it; its symlinks are not resolved.
	Destination string
	// Bind says that Source is a path of the host; otherwise Type is a file system and Source its device or "".
	Bind      bool
	Recursive bool
	Type      string
	Source    string
	Options   []Option
	// Attr is for the mount itself, RecAttr for the whole tree below it (options "rro", "rnosuid", ...).
	Attr, RecAttr Attr
	// Propagation is MS_PRIVATE, MS_SLAVE, MS_SHARED or MS_UNBINDABLE; 0 leaves it. PropagationRec applies it to the tree.
	Propagation    uint64
	PropagationRec bool
	// CopyUp fills a new tmpfs with what the root file system has at Destination (option "tmpcopyup").
	CopyUp bool
	// IDMap asks for an idmapped mount ("idmap" or "ridmap", or mappings in the spec).
	IDMap, IDMapRec          bool
	UIDMappings, GIDMappings []specs.LinuxIDMapping
	// Cgroup says that the mount shows the container's control groups.
	Cgroup bool
}

type attrOption struct {
	set, clear uint64
}

var attrOptions = map[string]attrOption{ //nolint:gochecknoglobals // a constant table
	"ro": {set: unix.MOUNT_ATTR_RDONLY}, "rw": {clear: unix.MOUNT_ATTR_RDONLY},
	"nosuid": {set: unix.MOUNT_ATTR_NOSUID}, "suid": {clear: unix.MOUNT_ATTR_NOSUID},
	"nodev": {set: unix.MOUNT_ATTR_NODEV}, "dev": {clear: unix.MOUNT_ATTR_NODEV},
	"noexec": {set: unix.MOUNT_ATTR_NOEXEC}, "exec": {clear: unix.MOUNT_ATTR_NOEXEC},
	"nodiratime": {set: unix.MOUNT_ATTR_NODIRATIME}, "diratime": {clear: unix.MOUNT_ATTR_NODIRATIME},
	"nosymfollow": {set: unix.MOUNT_ATTR_NOSYMFOLLOW}, "symfollow": {clear: unix.MOUNT_ATTR_NOSYMFOLLOW},
	// The access time mode is one field of three values: changing it means to clear the whole field first.
	"noatime":       {set: unix.MOUNT_ATTR_NOATIME, clear: unix.MOUNT_ATTR__ATIME},
	"atime":         {set: unix.MOUNT_ATTR_RELATIME, clear: unix.MOUNT_ATTR__ATIME},
	"relatime":      {set: unix.MOUNT_ATTR_RELATIME, clear: unix.MOUNT_ATTR__ATIME},
	"norelatime":    {set: unix.MOUNT_ATTR_STRICTATIME, clear: unix.MOUNT_ATTR__ATIME},
	"strictatime":   {set: unix.MOUNT_ATTR_STRICTATIME, clear: unix.MOUNT_ATTR__ATIME},
	"nostrictatime": {set: unix.MOUNT_ATTR_RELATIME, clear: unix.MOUNT_ATTR__ATIME},
}

var propagationOptions = map[string]uint64{ //nolint:gochecknoglobals // a constant table
	"private": unix.MS_PRIVATE, "slave": unix.MS_SLAVE, "shared": unix.MS_SHARED, "unbindable": unix.MS_UNBINDABLE,
}

// superblockFlags are options of a file system instance that fsconfig takes without a value.
var superblockFlags = map[string]bool{ //nolint:gochecknoglobals // a constant table
	"sync": true, "dirsync": true, "lazytime": true, "mand": true,
}

// ignoredOptions have no meaning for a new mount; they come from fstab habits.
var ignoredOptions = map[string]bool{ //nolint:gochecknoglobals // a constant table
	"defaults": true, "async": true, "nolazytime": true, "nomand": true, "silent": true, "loud": true,
	"iversion": true, "noiversion": true, "acl": true, "noacl": true, "remount": true,
}

// PlanMounts translates the mounts of a spec. It makes no system call. Errors name the mount's index and destination.
// Source: runtime-spec 1.3.0, config.md "Mounts" and "Linux mount options".
func PlanMounts(mounts []specs.Mount) ([]Mount, error) {
	out := make([]Mount, 0, len(mounts))
	for i := range mounts {
		m, err := planMount(&mounts[i])
		if err != nil {
			return nil, fmt.Errorf("mounts[%d] (destination %q): %w", i, mounts[i].Destination, err)
		}
		out = append(out, m)
	}
	return out, nil
}

func planMount(in *specs.Mount) (Mount, error) {
	m := Mount{Type: in.Type, Source: in.Source, UIDMappings: in.UIDMappings, GIDMappings: in.GIDMappings}
	if in.Destination == "" {
		return m, fmt.Errorf("destination is empty")
	}
	// The kernel reads up to the NUL: what is judged must be what is mounted, so type and options count as well.
	if strings.ContainsRune(in.Destination+in.Source+in.Type+strings.Join(in.Options, ","), 0) {
		return m, fmt.Errorf("contains a NUL byte")
	}
	// A relative destination is relative to "/": runtime-spec 1.2.0 deprecates it, and runc accepts it.
	m.Destination = path.Clean("/" + in.Destination)
	for _, o := range in.Options {
		m.addOption(o)
	}
	if in.Type == "bind" {
		m.Bind = true
	}
	if (in.Type == "none" || in.Type == "") && !m.Bind {
		return m, fmt.Errorf("type %q without the option bind or rbind", in.Type)
	}
	m.Cgroup = !m.Bind && (in.Type == "cgroup" || in.Type == "cgroup2")
	if m.Bind {
		if in.Source == "" {
			return m, fmt.Errorf("bind mount without a source")
		}
		m.Options = nil // file system data has no meaning for a bind mount; runc ignores it as well
	}
	if len(m.UIDMappings) > 0 || len(m.GIDMappings) > 0 {
		m.IDMap = true
	}
	return m, nil
}

func (m *Mount) addOption(o string) {
	if a, ok := attrOptions[o]; ok {
		m.Attr.apply(a)
		return
	}
	if rest, ok := strings.CutPrefix(o, "r"); ok && m.addRecursive(rest) {
		return
	}
	if p, ok := propagationOptions[o]; ok {
		m.Propagation, m.PropagationRec = p, false
		return
	}
	switch {
	case o == "bind":
		m.Bind = true
	case o == "idmap":
		m.IDMap = true
	case o == "tmpcopyup":
		m.CopyUp = true
	case ignoredOptions[o] || o == "":
	case superblockFlags[o]:
		m.Options = append(m.Options, Option{Key: o, Flag: true})
	default:
		key, value, hasValue := strings.Cut(o, "=")
		m.Options = append(m.Options, Option{Key: key, Value: value, Flag: !hasValue})
	}
}

// addRecursive handles the options that start with "r" for recursive: rbind, rro, rprivate, ridmap.
func (m *Mount) addRecursive(o string) bool {
	if a, ok := attrOptions[o]; ok {
		m.RecAttr.apply(a)
		return true
	}
	if p, ok := propagationOptions[o]; ok {
		m.Propagation, m.PropagationRec = p, true
		return true
	}
	switch o {
	case "bind":
		m.Bind, m.Recursive = true, true
	case "idmap":
		m.IDMap, m.IDMapRec = true, true
	default:
		return false
	}
	return true
}

// apply adds an option to what was asked before: the last word on a bit wins.
func (a *Attr) apply(o attrOption) {
	a.Set = a.Set&^o.clear | o.set
	a.Clear = a.Clear&^o.set | o.clear
}

// Propagation translates linux.rootfsPropagation; "" means rslave, so that the host's later mounts still arrive but
// none of the container's get out. Recursive flags are part of the result. Source: runtime-spec 1.3.0, config-linux.md
// "Rootfs Mount Propagation".
func Propagation(s string) (flag uint64, recursive bool, err error) {
	if s == "" {
		return unix.MS_SLAVE, true, nil
	}
	name, recursive := s, false
	if _, plain := propagationOptions[s]; !plain {
		name, recursive = strings.TrimPrefix(s, "r"), true
	}
	p, ok := propagationOptions[name]
	if !ok {
		return 0, false, fmt.Errorf("linux.rootfsPropagation %q: want private, slave, shared, unbindable or one of them with r in front", s)
	}
	return p, recursive, nil
}
