package shim

import (
	"fmt"
	"os"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/agentsafe/agentsafe/shim/wire"
)

// podConfig is what a shim needs of CRI's PodSandboxConfig.
type podConfig struct {
	hostname                   string
	servers, searches, options []string
	hasDNS                     bool
	cgroupParent               string
	sysctls                    map[string]string
	network, pid, ipc          uint64 // namespace modes
	netns                      string
}

// Namespace modes of CRI. Source: cri-api, runtime.v1.NamespaceMode.
const (
	modePod  = 0
	modeNode = 2
)

// parsePod reads the options of a sandbox. The numbers are those of runtime.v1.PodSandboxConfig in cri-api; they don't
// change.
func parsePod(packed *anypb.Any) (*podConfig, error) {
	p := &podConfig{}
	if packed == nil || len(packed.Value) == 0 {
		return p, nil
	}
	if !strings.HasSuffix(packed.TypeUrl, "PodSandboxConfig") {
		return nil, invalidArgument("sandbox options are of type %q instead of CRI's PodSandboxConfig", packed.TypeUrl)
	}
	const hostname, dns, linux = 2, 4, 8
	m, err := wire.Parse(packed.Value)
	if err != nil {
		return nil, invalidArgument("pod configuration: %s", err)
	}
	p.hostname = m.String(hostname)
	if p.hasDNS = len(m[dns]) > 0; p.hasDNS {
		d, err := m.Message(dns)
		if err != nil {
			return nil, invalidArgument("pod configuration: %s", err)
		}
		p.servers, p.searches, p.options = d.Strings(1), d.Strings(2), d.Strings(3)
	}
	l, err := m.Message(linux)
	if err == nil {
		err = p.parseLinux(l)
	}
	if err != nil {
		return nil, invalidArgument("pod configuration: %s", err)
	}
	return p, p.check()
}

func (p *podConfig) parseLinux(l wire.Message) (err error) {
	const cgroupParent, security, sysctls, namespaces = 1, 2, 3, 1
	p.cgroupParent = l.String(cgroupParent)
	if p.sysctls, err = l.Map(sysctls); err != nil {
		return err
	}
	s, err := l.Message(security)
	if err != nil {
		return err
	}
	n, err := s.Message(namespaces)
	if err != nil {
		return err
	}
	const network, pid, ipc, userns = 1, 2, 3, 5
	p.network, p.pid, p.ipc = n.Number(network), n.Number(pid), n.Number(ipc)
	u, err := n.Message(userns)
	if err != nil {
		return err
	}
	// The mode POD is the zero value and is not on the wire: ids that are mapped are what tells.
	if len(u[2])+len(u[3]) > 0 {
		return fmt.Errorf("user namespaces need containerd's default, sandboxer = 'podsandbox'")
	}
	return nil
}

// check refuses what a process that never runs its program cannot do.
func (p *podConfig) check() error {
	if p.pid == modePod {
		return invalidArgument("the pod's containers are to share processes (shareProcessNamespace), whose first process has to reap: " +
			"that needs containerd's default, sandboxer = 'podsandbox'")
	}
	for _, lines := range [][]string{p.servers, p.searches, p.options, {p.hostname}} {
		for _, l := range lines {
			if strings.ContainsAny(l, "\n\x00") {
				return invalidArgument("pod configuration: %q has more than one line", l)
			}
		}
	}
	return nil
}

func (p *podConfig) hostIPC() bool { return p.ipc == modeNode }

// files are the pod's files by name.
func (p *podConfig) files() (map[string][]byte, error) {
	name := p.hostname
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("find host name: %w", err)
		}
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		return nil, fmt.Errorf("copy hosts: %w", err)
	}
	resolver := []byte(p.resolver())
	if !p.hasDNS {
		if resolver, err = os.ReadFile("/etc/resolv.conf"); err != nil {
			return nil, fmt.Errorf("copy resolver: %w", err)
		}
	}
	return map[string][]byte{"hostname": []byte(name + "\n"), "hosts": append([]byte{}, hosts...), "resolv.conf": append([]byte{}, resolver...)}, nil
}

func (p *podConfig) resolver() string {
	var b strings.Builder
	if len(p.searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(p.searches, " "))
	}
	for _, s := range p.servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(p.options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(p.options, " "))
	}
	return b.String()
}

// spec is the container that holds the pod's namespaces.
func (p *podConfig) spec(id, namespace string) *specs.Spec {
	ns := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	if !p.hostIPC() {
		ns = append(ns, specs.LinuxNamespace{Type: specs.IPCNamespace})
	}
	hostname := ""
	if p.network != modeNode {
		ns = append(ns, specs.LinuxNamespace{Type: specs.UTSNamespace}, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: p.netns})
		hostname = p.hostname
	}
	// A pid namespace of its own in every case: nothing of the pod has to do with this process.
	if p.pid != modeNode {
		ns = append(ns, specs.LinuxNamespace{Type: specs.PIDNamespace})
	}
	return &specs.Spec{
		Version: "1.0.2", Hostname: hostname,
		Root:    &specs.Root{Path: podDir + "/rootfs", Readonly: true},
		Process: &specs.Process{Args: []string{"/pause"}, Cwd: "/", NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{}},
		// Parameters of the kernel are set through /proc, and devices need a /dev.
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755", "size=64k"}},
		},
		Linux: &specs.Linux{Namespaces: ns, CgroupsPath: p.cgroupsPath(id, namespace), Sysctl: p.sysctls},
	}
}

// cgroupsPath names the pod's cgroup as CRI does for a pause container, in the form of the driver that the parent has.
func (p *podConfig) cgroupsPath(id, namespace string) string {
	if base := path.Base(p.cgroupParent); strings.HasSuffix(base, ".slice") {
		return base + ":cri-containerd:" + id
	}
	if p.cgroupParent == "" {
		return path.Join("/", namespace, id)
	}
	return path.Join("/", p.cgroupParent, id)
}
