package oci

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestTmpfsCopyUp: Podman asks for tmpcopyup by default; what the image has there must not vanish.
func TestTmpfsCopyUp(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := plain(t, p)
		return d.RunSpec(t, func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{
				Destination: "/data", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup", "nosuid", "nodev", "mode=755"},
			})
			s.Root.Path = copyUpRoot(t)
			s.Process.Args = []string{"sh", "-c", "cd /data; stat -c '%n %F %a %u:%g %s %Y' . a a/f link; cat a/f; touch new && grep -o ' /data [^ ]*' /proc/self/mountinfo"}
		})
	}, harness.All(harness.Exits(0), harness.Prints(`a/f regular file 4640 7:8 5 \d+\nlink symbolic link`), harness.Prints(`text`)))
}

func copyUpRoot(t *testing.T) string {
	t.Helper()
	image, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(box.TempDir(t), "root")
	box.MustRun(t, "cp", "-a", image.Rootfs, root)
	data := filepath.Join(root, "data")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(data, "a"), 0o710),
		os.WriteFile(filepath.Join(data, "a/f"), []byte("text\n"), 0o600),
		os.Chown(filepath.Join(data, "a/f"), 7, 8),
		unix.Chmod(filepath.Join(data, "a/f"), 0o4640),
		unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(data, "a/f"), []unix.Timespec{{Sec: 1e9}, {Sec: 1e9}}, 0),
		os.Symlink("/etc/shadow", filepath.Join(data, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestIDMappedMount: the owner is another inside, and the mount that was copied keeps its own.
func TestIDMappedMount(t *testing.T) {
	_, p := harness.Peers(t)
	source := box.TempDir(t)
	if err := os.WriteFile(filepath.Join(source, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		m    specs.Mount
		want string
		exit int
	}{
		{"mappings of its own", specs.Mount{
			Options:     []string{"bind"},
			UIDMappings: []specs.LinuxIDMapping{{ContainerID: 0, HostID: 5000, Size: 10}},
			GIDMappings: []specs.LinuxIDMapping{{ContainerID: 0, HostID: 6000, Size: 10}},
		}, "^5000:6000\n$", 0},
		{"without any", specs.Mount{Options: []string{"rbind", "ridmap"}}, "^$", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := plain(t, p).RunSpec(t, func(s *specs.Spec) {
				tc.m.Destination, tc.m.Type, tc.m.Source = "/mnt", "bind", source
				s.Mounts = append(s.Mounts, tc.m)
				s.Process.Args = []string{"stat", "-c", "%u:%g", "/mnt/f"}
			})
			if msg := harness.All(harness.Exits(tc.exit), harness.Prints(tc.want))(r, r); msg != "" {
				t.Errorf("%s\n%v", msg, r)
			}
			if st, err := os.Stat(filepath.Join(source, "f")); err != nil || st.Sys() == nil {
				t.Error(err)
			}
			box.MustRun(t, "sh", "-c", "test $(stat -c %u:%g "+source+"/f) = 0:0")
		})
	}
}

// TestRecursiveAttributes: attributes of a bind are its own, those with an "r" hold for what is mounted below it, too.
func TestRecursiveAttributes(t *testing.T) {
	source := box.TempDir(t)
	box.MustRun(t, "sh", "-ec", "mkdir $0/sub; mount -t tmpfs none $0/sub", source)
	t.Cleanup(func() { box.MustRun(t, "umount", source+"/sub") })
	for _, tc := range []struct {
		options []string
		want    string
	}{
		{[]string{"rbind", "ro"}, "^refused\nwritten\n0\n$"},
		{[]string{"rbind", "rro"}, "^refused\nrefused\n0\n$"},
		{[]string{"rbind", "noexec"}, "^written\nwritten\n1\n$"},
		{[]string{"rbind", "rnoexec", "rnosuid"}, "^written\nwritten\n2\n$"},
	} {
		t.Run(strings.Join(tc.options, ","), func(t *testing.T) {
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				return plain(t, p).RunSpec(t, func(s *specs.Spec) {
					harness.Sh("for f in /v/x /v/sub/x; do (: >$f) 2>/dev/null && echo written || echo refused; done; awk '$5 ~ \"^/v\" && $6 ~ /noexec/' /proc/self/mountinfo | wc -l")(s)
					s.Mounts = append(s.Mounts, specs.Mount{Destination: "/v", Type: "bind", Source: source, Options: tc.options})
				})
			}, harness.SameExit, harness.SameOutput, harness.Exits(0), harness.Prints(tc.want))
		})
	}
}

// TestMemoryPolicyAndAffinity: they hold for the first process and for execs.
func TestMemoryPolicyAndAffinity(t *testing.T) {
	_, p := harness.Peers(t)
	d := plain(t, p)
	c := d.Up(t, func(s *specs.Spec) {
		s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: specs.MpolBind, Nodes: "0"}
		s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux32}
		s.Process.ExecCPUAffinity = &specs.CPUAffinity{Initial: "0", Final: "0"}
	})
	for _, tc := range []struct{ name, script, want string }{
		{"memory policy of the first process", "head -1 /proc/1/numa_maps", "^[0-9a-f]+ bind:0 "},
		{"memory policy of an exec", "head -1 /proc/self/numa_maps", "^[0-9a-f]+ bind:0 "},
		{"personality of an exec", "cat /proc/self/personality", "^0*8\n"},
		{"CPUs of an exec", "grep Cpus_allowed_list /proc/self/status", `:\s*0\n$`},
		{"CPUs of the first process", "grep Cpus_allowed_list /proc/1/status", `:\s*` + everyCPU(t) + `\n$`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := d.Do(t, "exec", c.ID, "sh", "-c", tc.script)
			if msg := harness.All(harness.Exits(0), harness.Prints(tc.want))(r, r); msg != "" {
				t.Errorf("%s\n%v", msg, r)
			}
		})
	}
}

func everyCPU(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	return string(data[:len(data)-1])
}

// TestCallersAffinity: a caller that is bound to one CPU does not bind the container (runc#4814).
func TestCallersAffinity(t *testing.T) {
	_, p := harness.Peers(t)
	d := plain(t, p)
	bundle := d.Box.Bundle(t, harness.Sh("grep Cpus_allowed_list /proc/self/status"))
	r := box.Run(t, harness.Cmd{Args: append([]string{"taskset", "-c", "0"}, d.Args("run", "--bundle", bundle.Dir, bundle.ID)...)})
	if msg := harness.Prints(`:\s*`+everyCPU(t)+`\n$`)(r, r); msg != "" {
		t.Errorf("%s\n%v", msg, r)
	}
}

// TestExecInSubCgroup: exec --cgroup is relative to the container's.
func TestExecInSubCgroup(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := plain(t, p)
		c := d.Up(t, func(s *specs.Spec) {
			for i, ns := range s.Linux.Namespaces {
				if ns.Type == specs.CgroupNamespace {
					s.Linux.Namespaces = append(s.Linux.Namespaces[:i:i], s.Linux.Namespaces[i+1:]...)
					break
				}
			}
		})
		sub := pidsCgroup(t, d.State(t, c.ID).Pid) + "/sub"
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(sub) })
		flag := "pids:sub"
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
			flag = "sub"
		}
		r := d.Do(t, "exec", "--cgroup", flag, c.ID, "sh", "-c", "grep -c 'pids.*/sub$\\|^0::.*/sub$' /proc/self/cgroup")
		if bad := d.Do(t, "exec", "--cgroup", "../..", c.ID, "true"); bad.Exit != 255 && p.Name == "agentsafe" {
			t.Errorf("exec out of the container's cgroup: %v", bad)
		}
		return r
	}, exact(0, "^1\n"))
}

// pidsCgroup is the directory of a process in the hierarchy of the controller pids.
func pidsCgroup(t *testing.T, pid int) string {
	t.Helper()
	script := `awk -F: '$2 == "pids" {print "/sys/fs/cgroup/pids" $3; f=1} $2 == "" {u = $3} END {if (!f) print "/sys/fs/cgroup" u}' /proc/$0/cgroup`
	out := box.MustRun(t, "sh", "-c", script, strconv.Itoa(pid))
	return strings.TrimSpace(out)
}

// TestNotSupported: what this version can't do is refused by the name of its field, never dropped.
func TestNotSupported(t *testing.T) {
	_, p := harness.Peers(t)
	for _, tc := range []struct {
		field string
		edit  func(*specs.Spec)
	}{
		{"linux.netDevices eth/9", func(s *specs.Spec) { s.Linux.NetDevices = map[string]specs.LinuxNetDevice{"eth/9": {}} }},
		{"linux.intelRdt", func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: "no-such-class"} }},
		{"linux.memoryPolicy.mode", func(s *specs.Spec) { s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: "MPOL_BEST"} }},
		{"linux.memoryPolicy.nodes", func(s *specs.Spec) {
			s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: specs.MpolBind, Nodes: "0-99999999"}
		}},
		{"process.selinuxLabel", func(s *specs.Spec) { s.Process.SelinuxLabel = "system_u:system_r:container_t:s0" }},
		{"linux.seccomp.listenerPath", func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, ListenerPath: "/run/none", Syscalls: notify("mkdir")}
		}},
		{"linux.seccomp.listenerPath", func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: notify("mkdir")}
		}},
		{"SCMP_ACT_NOTIFY for sendmsg", func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, ListenerPath: "/run/none", Syscalls: notify("sendmsg")}
		}},
	} {
		t.Run(tc.field, func(t *testing.T) {
			r := plain(t, p).RunSpec(t, tc.edit)
			if msg := harness.All(harness.Exits(1), harness.ErrorHas(tc.field))(r, r); msg != "" {
				t.Errorf("%s\n%v", msg, r)
			}
		})
	}
}
