package task

import (
	"sort"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// cpuPeriod is the accounting period of the CPU limit, in microseconds.
const cpuPeriod = 100_000

// baseSpec is what both kinds of root have in common.
func baseSpec(r *Request, u User, env []string) *specs.Spec {
	s := &specs.Spec{
		Version:     specs.Version,
		Hostname:    "agentsafe",
		Annotations: r.Annotations,
		Process: &specs.Process{
			Terminal:        r.Terminal,
			Args:            r.Command,
			Env:             env,
			Cwd:             "/",
			NoNewPrivileges: true,
			User:            specs.User{UID: u.UID, GID: u.GID, AdditionalGids: u.Groups},
			Capabilities:    &specs.LinuxCapabilities{},
		},
		Mounts: kernelMounts(),
		Linux: &specs.Linux{
			Namespaces:        namespaces(r.Network),
			Resources:         resources(r),
			MaskedPaths:       maskedPaths(),
			ReadonlyPaths:     readonlyPaths(),
			RootfsPropagation: "rprivate",
		},
	}
	if r.Terminal && r.Rows > 0 && r.Columns > 0 {
		s.Process.ConsoleSize = &specs.Box{Height: r.Rows, Width: r.Columns}
	}
	return s
}

func namespaces(network string) []specs.LinuxNamespace {
	kinds := []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace, specs.CgroupNamespace,
	}
	if network == NetworkNone {
		kinds = append(kinds, specs.NetworkNamespace)
	}
	var out []specs.LinuxNamespace
	for _, k := range kinds {
		out = append(out, specs.LinuxNamespace{Type: k})
	}
	return out
}

func resources(r *Request) *specs.LinuxResources {
	res := &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
	}
	if r.MemoryMaxBytes > 0 {
		limit := r.MemoryMaxBytes
		res.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	if r.PIDsMax > 0 {
		limit := r.PIDsMax
		res.Pids = &specs.LinuxPids{Limit: &limit}
	}
	if r.CPUs > 0 {
		quota, period := int64(r.CPUs*cpuPeriod), uint64(cpuPeriod)
		res.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	return res
}

// kernelMounts are the kernel's own file systems, as engines set them up.
func kernelMounts() []specs.Mount {
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=512m"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
	}
}

// workspaceMount binds the workspace at its own path. Writes go to the host's
// folder: the overlay of a workspace is not this package's.
func workspaceMount(r *Request) specs.Mount {
	source := r.Source
	if source == "" {
		source = r.Workspace
	}
	return specs.Mount{
		Destination: r.Workspace, Type: "bind", Source: source,
		Options: []string{"rbind", "rw", "nosuid", "nodev", "rnosuid", "rnodev", "rprivate"},
	}
}

// commonMount binds the git directory that a worktree belongs to; nil if there is none.
func commonMount(r *Request) []specs.Mount {
	if r.Common == "" {
		return nil
	}
	options := []string{"rbind", "rw", "nosuid", "nodev", "rnosuid", "rnodev", "rprivate"}
	if r.CommonReadOnly {
		options[1] = "ro"
	}
	return []specs.Mount{{Destination: r.Common, Type: "bind", Source: r.Common, Options: options}}
}

// sortMounts puts parents before children and keeps the order otherwise.
func sortMounts(mounts []specs.Mount) {
	sort.SliceStable(mounts, func(i, j int) bool {
		return strings.Count(mounts[i].Destination, "/") < strings.Count(mounts[j].Destination, "/")
	})
}

func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}
