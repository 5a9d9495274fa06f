package task

import (
	"errors"
	"fmt"
	"path"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Plan is a container, ready to be made.
type Plan struct {
	Spec     *specs.Spec
	Skeleton []Node // what WriteSkeleton makes
}

// Node is one entry of a skeleton: a directory, a file with Data, or a symbolic
// link to Target.
type Node struct {
	Path   string // relative, clean
	Mode   uint32 // permission bits; a directory has nodeDir set
	Data   []byte
	Target string
}

// nodeDir marks a directory in Node.Mode; the value is the kernel's S_IFDIR.
const nodeDir = 0o40000

func dirNode(p string, mode uint32) Node { return Node{Path: p, Mode: nodeDir | mode} }
func fileNode(p, data string) Node       { return Node{Path: p, Mode: 0o644, Data: []byte(data)} }
func linkNode(p, target string) Node     { return Node{Path: p, Target: target} }
func (n Node) isDir() bool               { return n.Mode&nodeDir != 0 }
func tmpfs(dest string, opts ...string) specs.Mount {
	return specs.Mount{
		Destination: dest, Type: "tmpfs", Source: "tmpfs",
		Options: append([]string{"nosuid", "nodev"}, opts...),
	}
}

// PlanHost plans a task on the host's own programs. rootDir is where the
// skeleton will be, the root of the spec.
func PlanHost(r *Request, u User, h *Host, rootDir string) (*Plan, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.Workspace == "" {
		return nil, errors.New("no workspace given")
	}
	if err := checkWorkspace(r.Workspace, append(slices.Clone(h.Homes), u.Home)); err != nil {
		return nil, err
	}
	name := u.Name
	if name == "" {
		name = "agent"
	}
	base := []string{"PATH=" + hostPath(h), "HOME=" + u.Home, "USER=" + name, "LOGNAME=" + name, "LANG=C.UTF-8"}
	env, err := mergeEnv(base, r.termEnv(), r.Env)
	if err != nil {
		return nil, err
	}
	s := baseSpec(r, u, env)
	s.Root = &specs.Root{Path: rootDir, Readonly: true}
	s.Process.Cwd = r.Workspace
	nodes := skeletonDirs()
	for _, t := range h.Top {
		if t.Link != "" {
			nodes = append(nodes, linkNode(t.Name, t.Link))
			continue
		}
		nodes = append(nodes, dirNode(t.Name, 0o755))
		s.Mounts = append(s.Mounts, readOnlyBind("/"+t.Name))
	}
	for _, name := range h.Etc.Binds {
		s.Mounts = append(s.Mounts, readOnlyBind(path.Join("/etc", name)))
	}
	s.Mounts = append(s.Mounts,
		tmpfs("/tmp", "mode=1777"), tmpfs("/run", "mode=755", "noexec"), tmpfs("/var/tmp", "mode=1777"),
		tmpfs(u.Home, "mode=0700", fmt.Sprintf("uid=%d", u.UID), fmt.Sprintf("gid=%d", u.GID)),
		workspaceMount(r))
	s.Mounts = append(s.Mounts, commonMount(r)...)
	sortMounts(s.Mounts)
	nodes = append(nodes, etcNodes(h, u, name)...)
	return &Plan{Spec: s, Skeleton: nodes}, nil
}

// readOnlyBind shows a directory of the host at its own path. rro: a file system
// that is mounted below (/usr/local on a disk of its own) is no less read-only.
func readOnlyBind(dir string) specs.Mount {
	return specs.Mount{
		Destination: dir, Type: "bind", Source: dir,
		Options: []string{"rbind", "ro", "nosuid", "nodev", "rro", "rnosuid", "rnodev", "rprivate"},
	}
}

// skeletonDirs are the empty directories that programs expect.
func skeletonDirs() []Node {
	var out []Node
	for _, d := range []string{
		"dev", "etc", "home", "media", "mnt", "proc", "run", "srv", "sys",
		"var", "var/cache", "var/empty", "var/lib", "var/log", "var/spool",
	} {
		out = append(out, dirNode(d, 0o755))
	}
	out = append(out, dirNode("root", 0o700), dirNode("tmp", 0o777), dirNode("var/tmp", 0o777))
	return append(out, linkNode("var/run", "/run"), linkNode("var/lock", "/run/lock"))
}

func hostPath(h *Host) string {
	if h.GoBin != "" {
		return defaultPath + ":" + h.GoBin
	}
	return defaultPath
}

// Root is a root file system that PlanRoot runs on.
type Root struct {
	Dir        string   // where it is mounted
	Env        []string // of the image
	WorkingDir string   // of the image; absolute
	FilesDir   string   // where WriteSkeleton will put hosts, hostname and resolv.conf
}

// PlanRoot plans a task on a root file system of its own, writable, which the
// caller throws away afterwards.
func PlanRoot(r *Request, u User, root Root, homes []string) (*Plan, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	env, err := mergeEnv([]string{"PATH=" + defaultPath, "HOME=" + u.Home}, root.Env, r.termEnv(), r.Env)
	if err != nil {
		return nil, err
	}
	s := baseSpec(r, u, env)
	s.Root = &specs.Root{Path: root.Dir}
	s.Process.Cwd = path.Clean("/" + root.WorkingDir)
	caps := imageCapabilities()
	s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps}
	if u.UID == 0 {
		s.Process.Capabilities.Effective, s.Process.Capabilities.Permitted = caps, caps
	}
	for _, f := range []string{"hosts", "hostname", "resolv.conf"} {
		s.Mounts = append(s.Mounts, specs.Mount{
			Destination: "/etc/" + f, Type: "bind", Source: path.Join(root.FilesDir, f),
			Options: []string{"bind", "ro", "nosuid", "nodev", "noexec", "rprivate"},
		})
	}
	if r.Workspace != "" {
		if err := checkWorkspace(r.Workspace, append(slices.Clone(homes), u.Home)); err != nil {
			return nil, err
		}
		s.Mounts = append(s.Mounts, workspaceMount(r))
		s.Process.Cwd = r.Workspace
	}
	return &Plan{Spec: s, Skeleton: nameFiles("")}, nil
}

// imageCapabilities is what root in an image needs to install and to drop
// privileges: Docker's default set without raw sockets, device nodes and audit.
func imageCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE",
		"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}
}

// nameFiles are the files that name the container and its neighbours.
func nameFiles(dir string) []Node {
	return []Node{
		fileNode(path.Join(dir, "hosts"), "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tagentsafe\n"),
		fileNode(path.Join(dir, "hostname"), "agentsafe\n"),
		fileNode(path.Join(dir, "resolv.conf"), "# no network\n"),
	}
}
