package oci

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// refused runs the bundle and wants an error within seconds that matches want, and nothing left behind.
func refused(t *testing.T, bundle harness.Bundle, id, want string) {
	t.Helper()
	_, p := harness.Peers(t)
	d := box.Bare(t, p)
	before := snapshot(t)
	r := box.Run(t, harness.Cmd{Args: d.Args("run", "--bundle", bundle.Dir, id), Timeout: 20 * time.Second})
	if r.Exit == 0 || !regexp.MustCompile(want).MatchString(r.Stderr) {
		t.Errorf("want an error that says %q:\n%v", want, r)
	}
	if n := strings.Count(strings.TrimSpace(r.Stderr), "\n"); n > 3 || len(r.Stderr) > 2000 || strings.Contains(r.Stderr, "goroutine ") {
		t.Errorf("not an error message for people:\n%v", r)
	}
	nothingLeft(t, p, before, d)
}

func TestBadConfigFile(t *testing.T) {
	valid := func() string {
		data, err := os.ReadFile(box.Bundle(t, nil).Config())
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}()
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", "config.json"},
		{"white space", " \n\t", "config.json"},
		{"cut off", valid[:len(valid)/2], "config.json"},
		{"no JSON", "#!/bin/sh\n", "config.json"},
		{"an array", "[]", "config.json"},
		{"null", "null", "config.json|process|root|ociVersion"},
		{"two documents", valid + valid, "config.json"},
		{"text after the document", valid + "x", "config.json"},
		{"args is a string", strings.Replace(valid, `"args": [`, `"args": "true", "x": [`, 1), "args"},
		{"uid is negative", strings.Replace(valid, `"uid": 0`, `"uid": -1`, 1), "uid"},
		{"uid is too large", strings.Replace(valid, `"uid": 0`, `"uid": 4294967296`, 1), "uid"},
		{"uid is a float", strings.Replace(valid, `"uid": 0`, `"uid": 0.5`, 1), "uid"},
		{"a hundred thousand brackets", strings.Repeat("[", 100_000), "config.json"},
		{"a hundred thousand objects", strings.Repeat(`{"linux":`, 100_000), "config.json"},
		{"binary", "\x00\x01\x02\xff", "config.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bundle := box.Bundle(t, nil)
			if err := os.WriteFile(bundle.Config(), []byte(tc.text), 0o644); err != nil {
				t.Fatal(err)
			}
			refused(t, bundle, bundle.ID, tc.want)
		})
	}
	for _, tc := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{"missing", func(string) error { return nil }, "config.json"},
		{"a directory", func(path string) error { return os.Mkdir(path, 0o755) }, "config.json"},
		{"a fifo", func(path string) error { return unix.Mkfifo(path, 0o644) }, "config.json"},
		{"a dangling link", func(path string) error { return os.Symlink("nosuch", path) }, "config.json"},
		{"a device without end", func(path string) error { return os.Symlink("/dev/zero", path) }, "config.json"},
		{"a sparse terabyte", func(path string) error {
			f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Truncate(1 << 40)
		}, "config.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bundle := box.Bundle(t, nil)
			if err := os.Remove(bundle.Config()); err != nil {
				t.Fatal(err)
			}
			if err := tc.make(bundle.Config()); err != nil {
				t.Fatal(err)
			}
			refused(t, bundle, bundle.ID, tc.want)
		})
	}
}

func TestBadRootfs(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(b harness.Bundle) error
		want string
	}{
		{"missing", func(b harness.Bundle) error { return os.RemoveAll(b.Rootfs()) }, "rootfs"},
		{"a file", func(b harness.Bundle) error {
			if err := os.RemoveAll(b.Rootfs()); err != nil {
				return err
			}
			return os.WriteFile(b.Rootfs(), nil, 0o644)
		}, "rootfs"},
		{"a link", func(b harness.Bundle) error {
			if err := os.Rename(b.Rootfs(), b.Rootfs()+".real"); err != nil {
				return err
			}
			return os.Symlink("rootfs.real", b.Rootfs())
		}, "rootfs"},
		{"empty", func(b harness.Bundle) error {
			if err := os.RemoveAll(b.Rootfs()); err != nil {
				return err
			}
			return os.Mkdir(b.Rootfs(), 0o755)
		}, "executable file not found"},
		{"/proc is a link", func(b harness.Bundle) error { return replaceByLink(b.Rootfs(), "proc", "/tmp") }, "proc"},
		{"/sys is a link", func(b harness.Bundle) error { return replaceByLink(b.Rootfs(), "sys", "tmp") }, "sys"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bundle := box.Bundle(t, nil)
			if err := tc.do(bundle); err != nil {
				t.Fatal(err)
			}
			refused(t, bundle, bundle.ID, tc.want)
		})
	}
	t.Run("the bundle is missing", func(t *testing.T) {
		refused(t, harness.Bundle{Dir: filepath.Join(box.Dir, "nosuch")}, box.ID(), "nosuch")
	})
	t.Run("the bundle is a file", func(t *testing.T) {
		refused(t, harness.Bundle{Dir: "/etc/passwd"}, box.ID(), "passwd")
	})
}

func replaceByLink(root, name, target string) error {
	if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
		return err
	}
	return os.Symlink(target, filepath.Join(root, name))
}

func TestBadSpec(t *testing.T) {
	small, huge, negative := int64(1), int64(1)<<62, int64(-5)
	period := uint64(1)
	mount := func(m specs.Mount) func(*specs.Spec) {
		return func(s *specs.Spec) { s.Mounts = append(s.Mounts, m) }
	}
	namespace := func(ns specs.LinuxNamespace) func(*specs.Spec) {
		return func(s *specs.Spec) {
			for i := range s.Linux.Namespaces {
				if s.Linux.Namespaces[i].Type == ns.Type {
					s.Linux.Namespaces[i] = ns
					return
				}
			}
			s.Linux.Namespaces = append(s.Linux.Namespaces, ns)
		}
	}
	sysctl := func(name, value string) func(*specs.Spec) {
		return func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{name: value} }
	}
	for _, tc := range []struct {
		name   string
		change func(*specs.Spec)
		want   string
	}{
		{"version of the future", func(s *specs.Spec) { s.Version = "99.0.0" }, "ociVersion|version"},
		{"version is no version", func(s *specs.Spec) { s.Version = "new" }, "ociVersion|version"},
		{"version is missing", func(s *specs.Spec) { s.Version = "" }, "ociVersion|version"},
		{"no process", func(s *specs.Spec) { s.Process = nil }, "process"},
		{"no command", func(s *specs.Spec) { s.Process.Args = nil }, "process.args"},
		{"empty command", func(s *specs.Spec) { s.Process.Args = []string{""} }, "process.args|executable file not found"},
		{"NUL in the command", func(s *specs.Spec) { s.Process.Args = []string{"true", "a\x00b"} }, "process.args"},
		{"NUL in the environment", func(s *specs.Spec) { s.Process.Env = []string{"A=b\x00c"} }, "process.env"},
		{"NUL in the directory", func(s *specs.Spec) { s.Process.Cwd = "/a\x00b" }, "process"},
		{"relative directory", func(s *specs.Spec) { s.Process.Cwd = "tmp" }, "process.cwd|cwd"},
		{"no directory", func(s *specs.Spec) { s.Process.Cwd = "" }, "process.cwd|cwd"},
		{"an argument too long", func(s *specs.Spec) { s.Process.Args = []string{"true", strings.Repeat("a", 1<<18)} }, "process.args|too long"},
		{"no root", func(s *specs.Spec) { s.Root = nil }, "root"},
		{"empty root", func(s *specs.Spec) { s.Root.Path = "" }, "root"},
		{"NUL in the root", func(s *specs.Spec) { s.Root.Path = "root\x00fs" }, "root"},
		{"unknown namespace", namespace(specs.LinuxNamespace{Type: "dreams"}), "namespaces"},
		{"namespace twice", func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace})
		}, "namespaces"},
		{"namespace path missing", namespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: "/nosuch"}), "/nosuch"},
		{"namespace path is a file", namespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: "/etc/passwd"}), "/etc/passwd"},
		{"namespace path of another kind", namespace(specs.LinuxNamespace{Type: specs.IPCNamespace, Path: "/proc/self/ns/uts"}), "ipc|namespaces"},
		{"namespace path of 70 kB", namespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: "/" + strings.Repeat("a/", 35_000)}), "namespace"},
		{"mount without destination", mount(specs.Mount{Type: "tmpfs", Source: "tmpfs"}), "mounts"},
		{"mount of an unknown file system", mount(specs.Mount{Destination: "/x", Type: "nosuchfs", Source: "x"}), "nosuchfs|/x"},
		{"bind of what is missing", mount(specs.Mount{Destination: "/x", Type: "bind", Source: "/nosuch/source", Options: []string{"bind"}}), "/nosuch/source"},
		{"mount option unknown", mount(specs.Mount{Destination: "/x", Type: "tmpfs", Source: "tmpfs", Options: []string{"no=such"}}), "/x|no=such"},
		{"NUL in a mount", mount(specs.Mount{Destination: "/x\x00y", Type: "tmpfs", Source: "tmpfs"}), "mounts"},
		{"propagation unknown", func(s *specs.Spec) { s.Linux.RootfsPropagation = "sideways" }, "rootfsPropagation|propagation"},
		{"host name without its namespace", func(s *specs.Spec) {
			s.Linux.Namespaces = s.Linux.Namespaces[:3]
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.MountNamespace})
		}, "hostname"},
		{"host name too long", func(s *specs.Spec) { s.Hostname = strings.Repeat("h", 200) }, "hostname"},
		{"sysctl of the host", sysctl("kernel.panic", "1"), "sysctl"},
		{"sysctl climbs", sysctl("net/../kernel/panic", "1"), "sysctl"},
		{"sysctl unknown", sysctl("net.nosuch", "1"), "sysctl|net.nosuch"},
		{"sysctl value refused", sysctl("net.ipv4.ip_forward", "words"), "sysctl|ip_forward"},
		{"rlimit unknown", func(s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_DREAMS", Hard: 1, Soft: 1}}
		}, "rlimits|RLIMIT_DREAMS"},
		{"rlimit twice", func(s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 10, Soft: 10}, {Type: "RLIMIT_NOFILE", Hard: 9, Soft: 9}}
		}, "rlimits|RLIMIT_NOFILE"},
		{"rlimit soft above hard", func(s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 10, Soft: 20}}
		}, "rlimits|RLIMIT_NOFILE"},
		{"memory of one byte", func(s *specs.Spec) { s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &small} }, "memory"},
		{"memory below zero", func(s *specs.Spec) { s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &negative} }, "memory"},
		{"swap below memory", func(s *specs.Spec) {
			limit, swap := int64(1<<27), int64(1<<26)
			s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit, Swap: &swap}
		}, "memory"},
		{"quota of a microsecond", func(s *specs.Spec) { s.Linux.Resources.CPU = &specs.LinuxCPU{Quota: &small, Period: &period} }, "cpu"},
		{"processors out of range", func(s *specs.Spec) { s.Linux.Resources.CPU = &specs.LinuxCPU{Cpus: "0-99999"} }, "cpus"},
		{"processors are words", func(s *specs.Spec) { s.Linux.Resources.CPU = &specs.LinuxCPU{Cpus: "all"} }, "cpus"},
		{"pids below the lowest", func(s *specs.Spec) {
			n := int64(-7)
			s.Linux.Resources.Pids = &specs.LinuxPids{Limit: &n}
		}, "pids"},
		{"huge page of a strange size", func(s *specs.Spec) {
			s.Linux.Resources.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "../../x", Limit: 1}}
		}, "hugepage|../../x"},
		{"unified resource climbs", func(s *specs.Spec) { s.Linux.Resources.Unified = map[string]string{"../cgroup.procs": "0"} }, "unified"},
		{"cgroup path climbs", func(s *specs.Spec) { s.Linux.CgroupsPath = "/../../../etc/" + box.Tag }, "cgroupsPath"},
		{"cgroup path has NUL", func(s *specs.Spec) { s.Linux.CgroupsPath = "/a\x00" }, "cgroupsPath"},
		{"device outside", func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/../../x", Type: "c", Major: 1, Minor: 3}}
		}, "devices"},
		{"device of no type", func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "z", Major: 1, Minor: 3}}
		}, "devices"},
		{"device rule of no type", func(s *specs.Spec) {
			s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Type: "z", Access: "rwm"}}
		}, "devices"},
		{"relative masked path", func(s *specs.Spec) { s.Linux.MaskedPaths = []string{"proc/kcore"} }, "maskedPaths|proc/kcore"},
		{"relative read-only path", func(s *specs.Spec) { s.Linux.ReadonlyPaths = []string{"proc/sys"} }, "readonlyPaths|proc/sys"},
		{"relative hook", func(s *specs.Spec) { s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "true"}}} }, "hooks|hook"},
		{"seccomp action unknown", func(s *specs.Spec) { s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: "SCMP_ACT_MAYBE"} }, "seccomp|SCMP_ACT_MAYBE"},
		{"seccomp architecture unknown", func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: []specs.Arch{"SCMP_ARCH_ABACUS"}}
		}, "seccomp|SCMP_ARCH_ABACUS"},
		{"mapping without a user namespace", func(s *specs.Spec) { s.Linux.UIDMappings = []specs.LinuxIDMapping{{Size: 1}} }, "uidMappings|[Mm]apping|user namespace"},
		{"user namespace without mapping", namespace(specs.LinuxNamespace{Type: specs.UserNamespace}), "uidMappings|[Mm]apping"},
		{"ten thousand mappings", func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
			for i := range uint32(10_000) {
				m := specs.LinuxIDMapping{ContainerID: i, HostID: 100_000 + i, Size: 1}
				s.Linux.UIDMappings, s.Linux.GIDMappings = append(s.Linux.UIDMappings, m), append(s.Linux.GIDMappings, m)
			}
		}, "uidMappings|[Mm]apping|uid_map"},
		{"oom score out of range", func(s *specs.Spec) {
			score := 5000
			s.Process.OOMScoreAdj = &score
		}, "oomScoreAdj|oom_score_adj"},
		{"program is a directory", func(s *specs.Spec) { s.Process.Args = []string{"/etc"} }, "permission denied|is a directory"},
		{"program is missing", func(s *specs.Spec) { s.Process.Args = []string{"nosuch"} }, `executable file not found in \$PATH`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bundle := box.Bundle(t, tc.change)
			refused(t, bundle, bundle.ID, tc.want)
		})
	}
	t.Run("a limit beyond all memory is no error", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			return box.Bare(t, p).RunSpec(t, func(s *specs.Spec) { s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &huge} })
		}, harness.Same, harness.Exits(0))
	})
}

func TestBadID(t *testing.T) {
	for _, tc := range []struct{ name, id, want string }{
		{"empty", "", "ID|id"},
		{"slash", "a/b", "ID|id"},
		{"dot", ".", "ID|id"},
		{"dot dot", "..", "ID|id"},
		{"climbs", "../../x", "ID|id"},
		{"over-long", strings.Repeat("a", 5000), "ID|id"},
		{"white space", "a b", "ID|id"},
		{"line feed", "a\nb", "ID|id"},
		{"not ASCII", "é", "ID|id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refused(t, box.Bundle(t, nil), tc.id, tc.want)
			_, p := harness.Peers(t)
			d := box.Bare(t, p)
			for _, command := range []string{"state", "start", "delete", "kill", "pause", "ps"} {
				if r := d.Do(t, command, tc.id); r.Exit == 0 {
					t.Errorf("%s takes the id %q:\n%v", command, tc.id, r)
				}
			}
		})
	}
}
