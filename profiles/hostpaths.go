package profiles

import (
	"path"
	"strings"
)

// hostRule refuses a path of the host as the source of a bind mount: the path itself, every directory above it (which
// would bring it along), and with beneath everything below it. Each component may be a pattern of path.Match.
type hostRule struct {
	path    string
	beneath bool
	why     string
}

const (
	whyEngine  = "whoever reaches an engine's socket is root on the host"
	whyOthers  = "it holds other containers' files"
	whySecrets = "it holds the host's secrets"
	whyRoot    = "what is written there is run as root on the host"
	whyKernel  = "it is the kernel's interface to the whole host"
)

// hostRules lists what must not be handed to code that nobody reviewed. Files that engines mount into containers
// (resolv.conf, hosts, volumes, secrets) are below these directories and are not refused.
var hostRules = []hostRule{ //nolint:gochecknoglobals // a constant table
	{"/proc", true, whyKernel},
	{"/sys", true, whyKernel},
	{"/dev", true, "it holds the host's devices"},
	{"/boot", true, "it holds the host's kernel"},
	{"/run", false, "it holds the sockets of the host's services"},
	{"/etc", false, whySecrets},

	{"/etc/shadow*", true, whySecrets},
	{"/etc/gshadow*", true, whySecrets},
	{"/etc/sudoers*", true, whySecrets},
	{"/etc/ssh/ssh_host_*", true, whySecrets},
	{"/etc/kubernetes", true, whySecrets},
	{"/etc/cron*", true, whyRoot},
	{"/etc/systemd", true, whyRoot},
	{"/etc/init.d", true, whyRoot},
	{"/etc/pam.d", true, whyRoot},
	{"/etc/profile.d", true, whyRoot},
	{"/etc/ld.so.preload", true, whyRoot},
	{"/var/spool/cron", true, whyRoot},

	{"/run/docker.sock", true, whyEngine},
	{"/run/docker", true, whyEngine},
	{"/run/dockershim.sock", true, whyEngine},
	{"/run/cri-dockerd.sock", true, whyEngine},
	{"/run/containerd", false, whyEngine},
	{"/run/containerd/*.sock*", true, whyEngine},
	{"/run/containerd/s", true, whyEngine},
	{"/run/containerd/runc", true, whyOthers},
	{"/run/podman", true, whyEngine},
	{"/run/crio", true, whyEngine},
	{"/run/buildkit", true, whyEngine},
	{"/run/k3s", true, whyEngine},
	{"/run/runc", true, whyOthers},
	{"/run/crun", true, whyOthers},
	{"/run/libvirt", true, whyEngine},
	{"/run/lxd*", true, whyEngine},
	{"/run/incus*", true, whyEngine},
	{"/run/snapd*", true, whyEngine},
	{"/var/lib/lxd/unix.socket", true, whyEngine},
	{"/var/snap/lxd/common/lxd/unix.socket", true, whyEngine},
	{"/var/lib/incus/unix.socket", true, whyEngine},
	{"/run/systemd", false, "it holds the socket of the host's service manager"},
	{"/run/systemd/private", true, "whoever reaches the service manager is root on the host"},
	{"/run/dbus", true, "whoever reaches the system bus can ask the host's services for root's work"},
	{"/run/user/*", false, "it holds the sockets of a user's session"},
	{"/run/user/*/podman", true, whyEngine},
	{"/run/user/*/docker.sock", true, whyEngine},
	{"/run/user/*/systemd", true, "whoever reaches a user's service manager runs programs as that user"},
	{"/run/user/*/bus", true, "whoever reaches a user's session bus runs programs as that user"},
	{"/run/agentsafe", false, whyOthers},
	{"/run/agentsafe/*", false, whyOthers},

	{"/var/lib/docker", false, whyOthers},
	{"/var/lib/docker/*", false, whyOthers},
	{"/var/lib/containerd", false, whyOthers},
	{"/var/lib/containerd/*", false, whyOthers},
	{"/var/lib/containers", false, whyOthers},
	{"/var/lib/containers/storage", false, whyOthers},
	{"/var/lib/containers/storage/*", false, whyOthers},
	{"/var/lib/nerdctl", false, whyOthers},
	{"/var/lib/agentsafe", false, whyOthers},
	{"/var/lib/agentsafe/*", false, whyOthers},
	{"/var/lib/kubelet", false, whySecrets},
	{"/var/lib/kubelet/pods", false, whyOthers},
	{"/var/lib/kubelet/pki", true, whySecrets},
	{"/var/lib/kubelet/device-plugins", true, "whoever reaches the kubelet's sockets hands devices to pods"},
	{"/var/lib/kubelet/pod-resources", true, "whoever reaches the kubelet's sockets reads the devices of pods"},
	{"/var/lib/kubelet/plugins*", true, "whoever reaches the kubelet's sockets mounts volumes into pods"},
	{"/var/lib/etcd", true, whySecrets},
	{"/var/lib/rancher", true, whySecrets},
}

// engineSocket reports whether a socket's name is an engine's, wherever it is.
func engineSocket(name string) bool {
	switch name {
	case "docker.sock", "dockershim.sock", "cri-dockerd.sock", "containerd.sock", "containerd.sock.ttrpc", "podman.sock",
		"crio.sock", "buildkitd.sock", "kubelet.sock", "frakti.sock", "libvirt-sock", "lxd.socket", "snapd.socket",
		"system_bus_socket", "agentsafe.sock":
		return true
	}
	return false
}

// HostPaths lists the paths whose identity [HostFacts] wants in Paths: those of the rules that are no patterns, and
// all directories above them. A path that does not exist is left out there.
func HostPaths() []string {
	seen := map[string]bool{}
	var out []string
	for _, r := range hostRules {
		p := r.path
		if i := strings.IndexByte(p, '*'); i >= 0 {
			p = path.Dir(p[:i] + "x")
		}
		for ; !seen[p]; p = path.Dir(p) {
			seen[p] = true
			out = append(out, p)
		}
	}
	return out
}

// judgeHostPath returns the rule that refuses a real path of the host, nil if there is none.
func judgeHostPath(p string) *hostRule {
	p = hostName(p)
	for i := range hostRules {
		if hostRules[i].refuses(p) {
			return &hostRules[i]
		}
	}
	return nil
}

// judgeRoot is judgeHostPath for a root file system: one that lies below a refused directory is an engine's, which keeps
// them there, unless the kernel made it.
func judgeRoot(p string) *hostRule {
	p = hostName(p)
	for i := range hostRules {
		if r := &hostRules[i]; r.matches(p, r.beneath && r.why == whyKernel) {
			return r
		}
	}
	return nil
}

// hostName spells a path as the table does: /var/run is /run wherever it is not a symlink already.
func hostName(p string) string {
	if within("/var/run", p) {
		return "/run" + p[len("/var/run"):]
	}
	return p
}

func (r *hostRule) refuses(p string) bool { return r.matches(p, r.beneath) }

func (r *hostRule) matches(p string, beneath bool) bool {
	if p == "/" {
		return true
	}
	rule, rest := r.path, p
	for {
		var a, b string
		a, rule = component(rule)
		b, rest = component(rest)
		switch {
		case b == "":
			return true // the path itself, or a directory above it
		case a == "":
			return beneath
		}
		if a == b {
			continue
		}
		if strings.IndexByte(a, '*') < 0 {
			return false
		}
		if ok, _ := path.Match(a, b); !ok {
			return false
		}
	}
}

// component splits "/a/b" into "a" and "/b".
func component(p string) (first, rest string) {
	if p == "" {
		return "", ""
	}
	p = p[1:]
	if i := strings.IndexByte(p, '/'); i >= 0 {
		return p[:i], p[i:]
	}
	return p, ""
}
