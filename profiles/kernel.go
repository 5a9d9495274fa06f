package profiles

import (
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// hostNamespaces are the kinds that a profile can grant the host's of, in the order in which they are judged.
func hostNamespaces() []specs.LinuxNamespaceType {
	return []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace,
	}
}

// namespace returns the spec's entry for a kind, nil if there is none.
func namespace(s *specs.Spec, kind specs.LinuxNamespaceType) *specs.LinuxNamespace {
	for i := range s.Linux.Namespaces {
		if s.Linux.Namespaces[i].Type == kind {
			return &s.Linux.Namespaces[i]
		}
	}
	return nil
}

// sharesHost reports whether the container would be in the host's namespace of a kind: it has no entry, or joins it.
func (h HostFacts) sharesHost(s *specs.Spec, kind specs.LinuxNamespaceType) bool {
	n := namespace(s, kind)
	return n == nil || n.Path != "" && h.HostNamespaces[kind]
}

// checkNamespaces refuses the host's. A cgroup namespace is not required: engines leave it out on cgroup v1, and what
// is mounted of cgroups is read-only. The user namespace is the host's by default in every engine.
func (p *Profile) checkNamespaces(s *specs.Spec, host HostFacts) error {
	if host.sharesHost(s, specs.MountNamespace) {
		return p.refuse("linux.namespaces mount: the host's", "mounts of the container would be the host's", "")
	}
	for _, kind := range hostNamespaces() {
		if !host.sharesHost(s, kind) || slices.Contains(p.Host.Namespaces, kind) {
			continue
		}
		if kind == specs.NetworkNamespace && p.Network.Mode == NetworkHost {
			continue
		}
		return p.refuse(fmt.Sprintf("linux.namespaces %s: the host's", kind), whyNamespace(kind), fmt.Sprintf("host: {namespaces: [%s]}", kind))
	}
	if len(s.Linux.NetDevices) > 0 && !slices.Contains(p.Host.Namespaces, specs.NetworkNamespace) {
		return p.refuse("linux.netDevices", "a network device of the host would be taken from it", "host: {namespaces: [network]}")
	}
	return nil
}

func whyNamespace(kind specs.LinuxNamespaceType) string {
	switch kind {
	case specs.PIDNamespace:
		return "the task would see and signal the host's processes"
	case specs.NetworkNamespace:
		return "the task would reach the host's own addresses, sockets and metadata, and no rule could hold it"
	case specs.IPCNamespace:
		return "the task would share the host's memory segments and queues"
	default:
		return "the task would share the host's " + string(kind) + " namespace"
	}
}

// checkSysctls refuses parameters that no namespace of the container's own holds (CVE-2022-0811).
func (p *Profile) checkSysctls(s *specs.Spec, host HostFacts) error {
	keys := make([]string, 0, len(s.Linux.Sysctl))
	for k := range s.Linux.Sysctl {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, unsafeKey := range keys {
		key := strings.ReplaceAll(unsafeKey, "/", ".")
		if slices.Contains(p.Host.Sysctls, key) {
			continue
		}
		kind := sysctlNamespace(key)
		if kind != "" && !host.sharesHost(s, kind) {
			continue
		}
		rule := "it is not separate for each namespace"
		if kind != "" {
			rule = "it needs a " + string(kind) + " namespace of the container's own"
		}
		return p.refuse("linux.sysctl "+unsafeKey, rule, "host: {sysctls: ["+key+"]}")
	}
	return nil
}

// sysctlNamespace returns which namespace holds a parameter, "" if none does.
func sysctlNamespace(key string) specs.LinuxNamespaceType {
	switch key {
	case "kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax",
		"kernel.shmmni", "kernel.shm_rmid_forced":
		return specs.IPCNamespace
	case "kernel.domainname", "kernel.hostname":
		return specs.UTSNamespace
	}
	if strings.ContainsAny(key, "+ \t\n\x00") || strings.Contains(key, "..") {
		return ""
	}
	switch {
	case strings.HasPrefix(key, "net."):
		return specs.NetworkNamespace
	case strings.HasPrefix(key, "fs.mqueue."):
		return specs.IPCNamespace
	}
	return ""
}

// maskedPaths every container has masked: what `runc spec` and Docker have in common, and the power meter, which leaks
// other tenants' work (CVE-2020-8694).
func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
}

func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// planPaths completes the masked and read-only paths. A bare bundle without any can't be told from an engine that was
// asked to leave them out (systempaths=unconfined), so they are added, with a note, and neither is refused.
func (p *Profile) planPaths(l *specs.Linux) []Note {
	if p.HasPack(PackContainers) {
		return nil // a proc with masks can't be mounted again inside. Source: fs/namespace.c, mount_too_revealing
	}
	var added []string
	complete := func(have, want []string) []string {
		out := slices.Clone(have)
		for _, w := range want {
			if !slices.Contains(have, w) && !slices.Contains(l.ReadonlyPaths, w) {
				out = append(out, w)
				added = append(added, w)
			}
		}
		return out
	}
	l.MaskedPaths = complete(l.MaskedPaths, maskedPaths())
	l.ReadonlyPaths = complete(l.ReadonlyPaths, readonlyPaths())
	if len(added) == 0 {
		return nil
	}
	routine := len(added) == 1 && added[0] == "/sys/devices/virtual/powercap"
	return []Note{{Rule: "paths", Text: "masked or made read-only in addition: " + strings.Join(added, " "), Routine: routine}}
}
