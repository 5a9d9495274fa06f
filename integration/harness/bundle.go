package harness

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Bundle is an OCI bundle: config.json and a root file system of its own, both free to be changed by the test.
type Bundle struct {
	Dir string
	// ID is a container id for it; its cgroup has the same name.
	ID string
}

// Rootfs is the bundle's root file system.
func (b Bundle) Rootfs() string { return filepath.Join(b.Dir, "rootfs") }

// Config is the path of config.json.
func (b Bundle) Config() string { return filepath.Join(b.Dir, "config.json") }

// Bundle makes a bundle of the busybox image with [DefaultSpec], changed by mutate, which may be nil.
func (b *Box) Bundle(t testing.TB, mutate func(*specs.Spec)) Bundle {
	t.Helper()
	image, err := Busybox()
	if err != nil {
		t.Fatal(err)
	}
	bundle := Bundle{Dir: b.TempDir(t), ID: b.ID()}
	if out, err := exec.Command("cp", "-a", image.Rootfs, bundle.Rootfs()).CombinedOutput(); err != nil {
		t.Fatalf("copy root file system: %v: %s", err, out)
	}
	spec := DefaultSpec()
	spec.Linux.CgroupsPath = b.CgroupParent() + "/" + bundle.ID
	if mutate != nil {
		mutate(spec)
	}
	data, err := json.MarshalIndent(spec, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bundle.Config(), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return bundle
}

// Sh returns a mutation that makes the container run a shell command.
func Sh(script string) func(*specs.Spec) {
	return func(s *specs.Spec) { s.Process.Args = []string{"/bin/sh", "-c", script} }
}

// DefaultSpec is a container as an engine asks for by default: all namespaces but the user's and time's, the usual
// mounts, Docker's capabilities, `true` as the command, no terminal.
func DefaultSpec() *specs.Spec {
	caps := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
	deny := false
	return &specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{
			Args:         []string{"true"},
			Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"},
			Cwd:          "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Root:     &specs.Root{Path: "rootfs"},
		Hostname: "box",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
		},
		Linux: &specs.Linux{
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: deny, Access: "rwm"}}},
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace},
			},
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
				"/proc/sched_debug", "/sys/firmware", "/proc/scsi",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}
