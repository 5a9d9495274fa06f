package container

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/initproc"
	"github.com/agentsafe/agentsafe/runtime/rootless"
)

// namespaceKinds in the order in which they are joined: the user namespace first, for what it permits in the others,
// the mount namespace last, because paths change with it.
var namespaceKinds = []struct { //nolint:gochecknoglobals // a constant table
	kind specs.LinuxNamespaceType
	flag int
	file string
}{
	{specs.UserNamespace, unix.CLONE_NEWUSER, "user"},
	{specs.PIDNamespace, unix.CLONE_NEWPID, "pid"},
	{specs.IPCNamespace, unix.CLONE_NEWIPC, "ipc"},
	{specs.UTSNamespace, unix.CLONE_NEWUTS, "uts"},
	{specs.NetworkNamespace, unix.CLONE_NEWNET, "net"},
	{specs.CgroupNamespace, unix.CLONE_NEWCGROUP, "cgroup"},
	{specs.TimeNamespace, unix.CLONE_NEWTIME, "time"},
	{specs.MountNamespace, unix.CLONE_NEWNS, "mnt"},
}

func validateNamespaces(s *specs.Spec) error {
	seen := map[specs.LinuxNamespaceType]bool{}
	for i, n := range s.Linux.Namespaces {
		field := fmt.Sprintf("linux.namespaces[%d]", i)
		known := false
		for _, k := range namespaceKinds {
			known = known || k.kind == n.Type
		}
		switch {
		case !known:
			return invalid(field+".type", fmt.Sprintf("%q is not a namespace", n.Type))
		case seen[n.Type]:
			return invalid(field+".type", fmt.Sprintf("%q is there twice", n.Type))
		case n.Path != "" && !filepath.IsAbs(n.Path):
			return invalid(field+".path", fmt.Sprintf("%q is not an absolute path", n.Path))
		case len(n.Path) >= unix.PathMax:
			return invalid(field+".path", fmt.Sprintf("%d bytes are longer than a path can be", len(n.Path)))
		}
		seen[n.Type] = true
	}
	switch {
	case !seen[specs.MountNamespace] && len(s.Linux.MaskedPaths)+len(s.Linux.ReadonlyPaths) > 0:
		return invalid("linux.namespaces", "linux.maskedPaths and linux.readonlyPaths need a mount namespace of the container's own")
	case !seen[specs.MountNamespace] && s.Linux.RootfsPropagation != "":
		return invalid("linux.rootfsPropagation", "needs a mount namespace of the container's own")
	case s.Hostname != "" && !seen[specs.UTSNamespace]:
		return invalid("hostname", "needs a uts namespace of the container's own")
	case s.Domainname != "" && !seen[specs.UTSNamespace]:
		return invalid("domainname", "needs a uts namespace of the container's own")
	case len(s.Hostname) > 64:
		return invalid("hostname", "is longer than 64 bytes")
	case len(s.Domainname) > 64:
		return invalid("domainname", "is longer than 64 bytes")
	case len(s.Linux.TimeOffsets) > 0 && !seen[specs.TimeNamespace]:
		return invalid("linux.timeOffsets", "needs a time namespace of the container's own")
	case (len(s.Linux.UIDMappings) > 0 || len(s.Linux.GIDMappings) > 0) && !seen[specs.UserNamespace]:
		return invalid("linux.uidMappings", "needs a user namespace of the container's own")
	}
	return nil
}

// namespaces is what a spec asks of namespaces, opened.
type namespaces struct {
	clone    uintptr // flags for clone
	unshare  uintptr // flags for unshare: what has to belong to the user namespace that is joined
	own      map[specs.LinuxNamespaceType]bool
	joined   map[specs.LinuxNamespaceType]*os.File
	pid      *os.File // a pid namespace to enter before the clone
	cgroupNS bool     // made by the child, after its placement
	timeNS   bool     // made by the child: clone(2) has no flag for it
	offsets  string
	uid, gid []syscall.SysProcIDMap
}

func (n *namespaces) close() {
	for _, f := range n.joined {
		f.Close()
	}
}

// openNamespaces opens every namespace that is joined by path, and checks its kind. The caller closes the result.
// ids translates what the spec maps to, nil if it needs no translation.
func openNamespaces(s *specs.Spec, ids *IDs) (*namespaces, error) {
	n := &namespaces{
		own:    map[specs.LinuxNamespaceType]bool{},
		joined: map[specs.LinuxNamespaceType]*os.File{},
	}
	for i := range s.Linux.Namespaces {
		if err := n.add(&s.Linux.Namespaces[i], i); err != nil {
			n.close()
			return nil, err
		}
	}
	if n.joined[specs.UserNamespace] != nil && n.clone != 0 {
		n.clone, n.unshare, n.pid = 0, n.clone, nil // the child joins the pid namespace, too
	}
	if n.own[specs.UserNamespace] {
		var err error
		if n.uid, err = idMap("linux.uidMappings", s.Linux.UIDMappings); err == nil {
			n.gid, err = idMap("linux.gidMappings", s.Linux.GIDMappings)
		}
		if err == nil && ids != nil {
			err = n.translate(ids)
		}
		if err != nil {
			n.close()
			return nil, err
		}
	}
	for clock, o := range s.Linux.TimeOffsets {
		n.offsets += fmt.Sprintf("%s %d %d\n", clock, o.Secs, o.Nanosecs)
	}
	return n, nil
}

func (n *namespaces) add(ns *specs.LinuxNamespace, index int) error {
	for _, k := range namespaceKinds {
		if k.kind != ns.Type {
			continue
		}
		if ns.Path == "" {
			n.own[k.kind] = true
			switch k.kind {
			case specs.CgroupNamespace:
				n.cgroupNS = true
			case specs.TimeNamespace:
				n.timeNS = true
			default:
				n.clone |= uintptr(k.flag)
			}
			return nil
		}
		f, err := openNamespace(ns.Path, k.flag)
		if err != nil {
			return fmt.Errorf("linux.namespaces[%d].path: %w", index, err)
		}
		if k.kind == specs.UserNamespace && isOwnUserNamespace(f) {
			f.Close()
			return invalid(fmt.Sprintf("linux.namespaces[%d].path", index), ns.Path+" is the user namespace of the runtime itself, which the kernel lets nobody join again (leave it out)")
		}
		n.joined[k.kind] = f
		if k.kind == specs.PIDNamespace {
			n.pid = f
		}
	}
	return nil
}

// openNamespace opens a namespace file and makes sure that it is one, of the wanted kind.
func openNamespace(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open namespace: %w", err)
	}
	const nsGetNstype = 0xb703
	kind, err := unix.IoctlRetInt(int(f.Fd()), nsGetNstype)
	if err != nil || kind != flag {
		f.Close()
		return nil, fmt.Errorf("%s is not a namespace of this type: %w", path, unix.EINVAL)
	}
	return f, nil
}

// isOwnUserNamespace reports whether f is where the caller is already: setns(2) refuses it.
func isOwnUserNamespace(f *os.File) bool {
	own, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return false
	}
	its, err := f.Stat()
	return err == nil && os.SameFile(own, its)
}

// joins lists what the child enters, in order.
func (n *namespaces) joins(d *initproc.Donation) []initproc.Join {
	var out []initproc.Join
	for _, k := range namespaceKinds {
		if f := n.joined[k.kind]; f != nil && (k.kind != specs.PIDNamespace || n.unshare != 0) {
			out = append(out, initproc.Join{FD: d.Add(f), Flag: k.flag})
		}
	}
	return out
}

// IDs are the maps of a user namespace.
type IDs struct{ UID, GID rootless.Map }

// translate makes of the ids of the namespace above, which the spec has, those of this one.
func (n *namespaces) translate(ids *IDs) (err error) {
	if n.uid, err = ids.UID.Inside(n.uid); err != nil {
		return fmt.Errorf("linux.uidMappings: %w", err)
	}
	if n.gid, err = ids.GID.Inside(n.gid); err != nil {
		return fmt.Errorf("linux.gidMappings: %w", err)
	}
	return nil
}

func idMap(field string, in []specs.LinuxIDMapping) ([]syscall.SysProcIDMap, error) {
	if len(in) == 0 {
		return nil, invalid(field, "a user namespace needs mappings")
	}
	if len(in) > 340 {
		return nil, invalid(field, "more than the kernel's 340 lines")
	}
	out := make([]syscall.SysProcIDMap, 0, len(in))
	for i, m := range in {
		if m.Size == 0 {
			return nil, invalid(fmt.Sprintf("%s[%d].size", field, i), "must not be zero")
		}
		out = append(out, syscall.SysProcIDMap{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Size)})
	}
	return out, nil
}

// hostNamespaces reports for each kind whether the container would be in the caller's own namespace: it asks for
// none, or joins the caller's by path.
func (n *namespaces) hostNamespaces() map[specs.LinuxNamespaceType]bool {
	out := map[specs.LinuxNamespaceType]bool{}
	for _, k := range namespaceKinds {
		if n.own[k.kind] {
			continue
		}
		f := n.joined[k.kind]
		out[k.kind] = f == nil || sameNamespace(f, "/proc/self/ns/"+k.file) || sameNamespace(f, "/proc/1/ns/"+k.file)
	}
	return out
}

func sameNamespace(f *os.File, path string) bool {
	var a, b unix.Stat_t
	return unix.Fstat(int(f.Fd()), &a) == nil && unix.Stat(path, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// startTime reads when a process began, in clock ticks since boot: with the pid it names a process for good.
// Source: proc_pid_stat(5), field 22.
func startTime(pid int) (ticks uint64, state byte, err error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	// The command may contain anything, parentheses included: count from the last one.
	end := strings.LastIndexByte(string(data), ')')
	fields := strings.Fields(string(data[end+1:]))
	if end < 0 || len(fields) < 20 {
		return 0, 0, fmt.Errorf("parse /proc/%d/stat: %w", pid, unix.EINVAL)
	}
	ticks, err = strconv.ParseUint(fields[19], 10, 64)
	return ticks, fields[0][0], err
}
