package profiles

import (
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// agentCapabilities are Podman's default set: what unprivileged work in an image needs. Of Docker's fourteen it leaves
// out NET_RAW (forged packets, and socket marks that pass for another's), MKNOD and AUDIT_WRITE (forged audit records).
func agentCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP",
		"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}
}

// engineDefault reports whether an engine gives the capability to every container, so that nobody asked for it: where
// the profile does not grant it, it is cut and not refused. Source: moby oci/caps/defaults.go, containerd
// pkg/oci/spec.go, containers/common pkg/config, runc spec.
func engineDefault(name string) bool {
	switch name {
	case "CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
		"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT":
		return true
	}
	return false
}

// planCapabilities bounds the sets of a spec by the profile.
func (p *Profile) planCapabilities(in *specs.LinuxCapabilities) (*specs.LinuxCapabilities, []Note, error) {
	if in == nil {
		return nil, nil, nil
	}
	var cut []string
	var beyond []string
	bound := func(set []string) []string {
		var out []string
		for _, unsafeName := range set {
			name := strings.ToUpper(unsafeName)
			switch {
			case slices.Contains(p.Capabilities, name):
				out = append(out, name)
			case engineDefault(name):
				cut = append(cut, name)
			default:
				beyond = append(beyond, name)
			}
		}
		return out
	}
	out := &specs.LinuxCapabilities{
		Bounding: bound(in.Bounding), Effective: bound(in.Effective), Permitted: bound(in.Permitted),
	}
	inheritable, ambient := bound(in.Inheritable), bound(in.Ambient)
	if len(beyond) > 0 {
		return nil, nil, p.refuseCapabilities(compact(beyond))
	}
	// CVE-2022-29162: a file with inheritable capabilities would raise them at execve. They stay empty but for the
	// ambient ones, which the kernel grants only if they are inheritable (capabilities(7)); a spec that asks for ambient
	// without inheritable ones, as `runc spec` writes it, gets none from any kernel.
	for _, c := range ambient {
		if slices.Contains(inheritable, c) && slices.Contains(out.Permitted, c) {
			out.Ambient = append(out.Ambient, c)
		}
	}
	out.Inheritable = slices.Clone(out.Ambient)
	if len(cut) == 0 {
		return out, nil, nil
	}
	return out, []Note{{Rule: "capabilities", Text: "cut " + strings.Join(compact(cut), " "), Routine: true}}, nil
}

// refuseCapabilities spells out a few; a list of nearly all is --privileged, and names the one that makes it so.
func (p *Profile) refuseCapabilities(beyond []string) error {
	const few = 5
	what, key := strings.Join(beyond, " "), strings.Join(beyond, ", ")
	if len(beyond) > few {
		i := max(0, slices.Index(beyond, "CAP_SYS_ADMIN"))
		what = fmt.Sprintf("%s and %d more (privileged?)", beyond[i], len(beyond)-1)
		key = beyond[i] + ", ..."
	}
	return p.refuse("process.capabilities "+what, "capabilities beyond the engines' defaults reach the host's kernel",
		fmt.Sprintf("capabilities: [..., %s]", key))
}

func compact(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// knownCapability reports whether name is one of the kernel's. Source: linux/capability.h of Linux 6.12.
func knownCapability(name string) bool {
	switch name {
	case "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
		"CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN",
		"CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT",
		"CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
		"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL",
		"CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
		"CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE":
		return true
	}
	return false
}
