package container

import (
	"iter"
	"maps"
	"os"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// Features describes this runtime. Source: runtime-spec 1.3.0, features.md and features-linux.md.
func Features(version string) *features.Features {
	yes, no := true, false
	f := &features.Features{
		OCIVersionMin: "1.0.0", OCIVersionMax: specs.Version,
		Hooks:        []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"},
		MountOptions: mountOptionNames(),
		Linux: &features.Linux{
			Capabilities: append([]string(nil), capabilityNames...),
			Cgroup:       &features.Cgroup{V1: &yes, V2: &yes, Systemd: &yes, SystemdUser: &no, Rdma: &yes},
			Seccomp: &features.Seccomp{
				Enabled: &yes,
				Actions: []string{
					"SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_KILL_THREAD",
					"SCMP_ACT_LOG", "SCMP_ACT_NOTIFY", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP",
				},
				Operators: []string{
					"SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_LE", "SCMP_CMP_LT", "SCMP_CMP_MASKED_EQ", "SCMP_CMP_NE",
				},
			},
			Apparmor: &features.Apparmor{Enabled: &yes}, Selinux: &features.Selinux{Enabled: &yes},
			IntelRdt:        &features.IntelRdt{Enabled: &yes, Schemata: &yes, Monitoring: &yes},
			MemoryPolicy:    &features.MemoryPolicy{Modes: sorted(maps.Keys(memoryModes)), Flags: sorted(maps.Keys(memoryFlags))},
			NetDevices:      &features.NetDevices{Enabled: &yes},
			MountExtensions: &features.MountExtensions{IDMap: &features.IDMap{Enabled: &yes}},
		},
		Annotations: map[string]string{"dev.agentsafe.version": version},
		PotentiallyUnsafeConfigAnnotations: []string{
			"agentsafe.dev/",
		},
	}
	f.Linux.Seccomp.Archs = sorted(slices.Values(profiles.SeccompArchs()))
	f.Linux.Seccomp.KnownFlags = sorted(maps.Keys(profiles.SeccompFlags()))
	f.Linux.Seccomp.SupportedFlags = slices.DeleteFunc(slices.Clone(f.Linux.Seccomp.KnownFlags), func(flag string) bool {
		return !hasSeccompFlag(profiles.SeccompFlags()[specs.LinuxSeccompFlag(flag)])
	})
	for _, k := range namespaceKinds {
		f.Linux.Namespaces = append(f.Linux.Namespaces, string(k.kind))
	}
	return f
}

// sorted makes a list of strings of values of a string type.
func sorted[S ~string](in iter.Seq[S]) []string {
	var out []string
	for s := range in {
		out = append(out, string(s))
	}
	slices.Sort(out)
	return out
}

// hasSeccompFlag asks the kernel by a filter that is not there: EFAULT, unless the flag is one that it does not know.
// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV came with Linux 5.19 (c2aa2dfef243 "seccomp: Add wait_killable semantic to
// seccomp user notifier") and goes with a listener.
func hasSeccompFlag(bits uint64) bool {
	if bits&unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV != 0 {
		bits |= unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	}
	_, _, err := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(bits), 0)
	return err == unix.EFAULT
}

func mountOptionNames() []string {
	var out []string
	out = append(out, []string{
		"async", "atime", "bind", "defaults", "dev", "diratime", "dirsync", "exec", "idmap", "lazytime", "loud", "noatime", "nodev",
		"nodiratime", "noexec", "nolazytime", "norelatime", "nostrictatime", "nosuid", "nosymfollow", "private", "ratime",
		"rbind", "rdev", "rdiratime", "relatime", "remount", "rexec", "ridmap", "rnoatime", "rnodev", "rnodiratime", "rnoexec",
		"rnorelatime", "rnostrictatime", "rnosuid", "rnosymfollow", "ro", "rprivate", "rrelatime", "rro", "rrw", "rshared",
		"rslave", "rstrictatime", "rsuid", "rsymfollow", "runbindable", "rw", "shared", "silent", "slave", "strictatime",
		"suid", "symfollow", "sync", "tmpcopyup", "unbindable",
	}...)
	return out
}

// ExampleSpec is what `agentsafe spec` writes: a shell in a read-only root file system.
func ExampleSpec(rootless bool) *specs.Spec {
	caps := []string{"CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"}
	secure := []string{"nosuid", "noexec", "nodev"}
	s := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Terminal: true, Args: []string{"sh"}, Cwd: "/", NoNewPrivileges: true,
			Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"},
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1024, Soft: 1024}},
		},
		Root: &specs.Root{Path: "rootfs", Readonly: true}, Hostname: "agentsafe",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: append([]string{"mode=1777", "size=65536k"}, secure...)},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: secure},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: append([]string{"ro"}, secure...)},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: append([]string{"ro", "relatime"}, secure...)},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace},
			},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
				"/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	if rootless {
		makeRootless(s)
	}
	return s
}

// makeRootless maps the caller's own id to root and leaves out what only the real root can mount.
func makeRootless(s *specs.Spec) {
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	s.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(os.Geteuid()), Size: 1}} //nolint:gosec // ids fit
	s.Linux.GIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(os.Getegid()), Size: 1}} //nolint:gosec // ids fit
	s.Linux.Resources = nil
	for i := range s.Mounts {
		if s.Mounts[i].Destination == "/dev/pts" {
			s.Mounts[i].Options = s.Mounts[i].Options[:len(s.Mounts[i].Options)-1] // gid 5 is not mapped
		}
	}
}
