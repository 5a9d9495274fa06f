package cgroup

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

var update = flag.Bool("update", false, "rewrite golden files")

// hybridHost is a machine as Debian with systemd.unified_cgroup_hierarchy=0 has it, seen from a user session.
func hybridHost() Host {
	m := func(name string, own string, controllers ...string) Hierarchy {
		return Hierarchy{Controllers: controllers, Mount: mountRoot + "/" + name, Own: own}
	}
	return Host{Hierarchies: []Hierarchy{
		m("cpu,cpuacct", "/user.slice", "cpu", "cpuacct"), m("memory", "/user.slice", "memory"),
		m("cpuset", "/", "cpuset"), m("devices", "/user.slice", "devices"), m("freezer", "/", "freezer"),
		m("pids", "/user.slice", "pids"), m("blkio", "/", "blkio"),
		m("systemd", "/user.slice", "name=systemd"), m("unified", "/user.slice", ""),
	}}
}

func unifiedHost() Host {
	return Host{Unified: true, Own: "/user.slice/session.scope", Controllers: []string{"cpuset", "cpu", "io", "memory", "pids"}}
}

func TestPlanPaths(t *testing.T) {
	for _, tt := range []struct {
		name             string
		in               Input
		controller, want string
	}{
		{"absolute", Input{CgroupsPath: "/docker/x", Host: hybridHost()}, "memory", "memory/docker/x"},
		{"joined hierarchy", Input{CgroupsPath: "/docker/x", Host: hybridHost()}, "cpuacct", "cpu,cpuacct/docker/x"},
		{"hybrid", Input{CgroupsPath: "/docker/x", Host: hybridHost()}, "", "unified/docker/x"},
		{"relative is below the own one", Input{CgroupsPath: "a/b", Host: hybridHost()}, "pids", "pids/user.slice/a/b"},
		{"default", Input{Host: hybridHost()}, "pids", "pids/user.slice/agentsafe-id"},
		{"v2 absolute", Input{CgroupsPath: "/docker/x", Host: unifiedHost()}, "", "docker/x"},
		{"v2 default is beside the own one", Input{Host: unifiedHost()}, "", "user.slice/agentsafe-id"},
		{"unclean", Input{CgroupsPath: "//docker/./x/", Host: unifiedHost()}, "", "docker/x"},
		{"systemd", Input{CgroupsPath: "a-b.slice:docker:x", Systemd: true, Host: unifiedHost()}, "", "a.slice/a-b.slice/docker-x.scope"},
		{"systemd v1", Input{CgroupsPath: ":cri:x", Systemd: true, Host: hybridHost()}, "memory", "memory/system.slice/cri-x.scope"},
		{"systemd default", Input{Systemd: true, Host: unifiedHost()}, "", "system.slice/agentsafe-id.scope"},
		{"systemd slice", Input{CgroupsPath: "a.slice::b.slice", Systemd: true, Host: unifiedHost()}, "", "a.slice/b.slice"},
	} {
		tt.in.ID = "id"
		cfg, err := Plan(tt.in)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := cfg.Paths[tt.controller]; got != filepath.Join(mountRoot, tt.want) {
			t.Errorf("%s: %q, want %q below %s", tt.name, got, tt.want, mountRoot)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	mem := func(m specs.LinuxMemory) *specs.LinuxResources { return &specs.LinuxResources{Memory: &m} }
	cpu := func(c specs.LinuxCPU) *specs.LinuxResources { return &specs.LinuxResources{CPU: &c} }
	pids := func(n int64) *specs.LinuxResources {
		return &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &n}}
	}
	dev := func(d ...specs.LinuxDeviceCgroup) *specs.LinuxResources { return &specs.LinuxResources{Devices: d} }
	v1, v2 := hybridHost(), unifiedHost()
	bare := Host{Hierarchies: v1.Hierarchies[4:5]}
	for _, tt := range []struct {
		field       string
		unsupported bool
		in          Input
	}{
		{"linux.cgroupsPath", false, Input{CgroupsPath: "/a/../b", Host: v1}},
		{"linux.cgroupsPath", false, Input{CgroupsPath: "..", Host: v2}},
		{"linux.cgroupsPath", false, Input{CgroupsPath: "/", Host: v1}},
		{"linux.cgroupsPath", false, Input{CgroupsPath: "./", Host: v1}},
		{"linux.cgroupsPath", false, Input{CgroupsPath: "/" + strings.Repeat("x", 256), Host: v1}},
		{"linux.cgroupsPath", false, Input{CgroupsPath: "/" + strings.Repeat("x/", 2000), Host: v1}},
		{"linux.cgroupsPath", false, Input{CgroupsPath: "/a\nb", Host: v1}},
		{"linux.cgroupsPath", false, Input{CgroupsPath: "/docker/x", Systemd: true, Host: v2}},
		{"linux.cgroupsPath", false, Input{CgroupsPath: "a.slice:b/c:d", Systemd: true, Host: v2}},
		{"linux.cgroupsPath", false, Input{CgroupsPath: "a:b:c", Systemd: true, Host: v2}},
		{"linux.cgroupsPath", false, Input{CgroupsPath: "a.slice:b:", Systemd: true, Host: v2}},
		{"linux.cgroupsPath", true, Input{CgroupsPath: "a.slice:b:c", Systemd: true, Rootless: true, Host: v1}},
		{"linux.resources.memory.limit", false, Input{Resources: mem(specs.LinuxMemory{Limit: new(int64(-2))}), Host: v1}},
		{"linux.resources.memory.limit", false, Input{Resources: mem(specs.LinuxMemory{Limit: new(int64(4095))}), Host: v2}},
		{"linux.resources.memory.swap", false, Input{Resources: mem(specs.LinuxMemory{Limit: new(int64(8192)), Swap: new(int64(4096))}), Host: v1}},
		{"linux.resources.memory.swap", false, Input{Resources: mem(specs.LinuxMemory{Swap: new(int64(8192))}), Host: v2}},
		{"linux.resources.memory.swappiness", false, Input{Resources: mem(specs.LinuxMemory{Swappiness: new(uint64(101))}), Host: v1}},
		{"linux.resources.memory.limit", true, Input{Resources: mem(specs.LinuxMemory{Limit: new(int64(8192))}), Host: bare, Rootless: true}},
		{"linux.resources.cpu.shares", false, Input{Resources: cpu(specs.LinuxCPU{Shares: new(uint64(1))}), Host: v1}},
		{"linux.resources.cpu.quota", false, Input{Resources: cpu(specs.LinuxCPU{Quota: new(int64(999))}), Host: v1}},
		{"linux.resources.cpu.quota", false, Input{Resources: cpu(specs.LinuxCPU{Quota: new(int64(math.MaxInt64))}), Host: v2}},
		{"linux.resources.cpu.period", false, Input{Resources: cpu(specs.LinuxCPU{Period: new(uint64(1000001))}), Host: v1}},
		{"linux.resources.cpu.burst", false, Input{Resources: cpu(specs.LinuxCPU{Quota: new(int64(2000)), Burst: new(uint64(2001))}), Host: v1}},
		{"linux.resources.cpu.idle", false, Input{Resources: cpu(specs.LinuxCPU{Idle: new(int64(2))}), Host: v1}},
		{"linux.resources.cpu.realtimeRuntime", true, Input{Resources: cpu(specs.LinuxCPU{RealtimeRuntime: new(int64(9))}), Host: v2}},
		{"linux.resources.cpu.cpus", false, Input{Resources: cpu(specs.LinuxCPU{Cpus: "1-0"}), Host: v1}},
		{"linux.resources.cpu.mems", false, Input{Resources: cpu(specs.LinuxCPU{Mems: "0;rm"}), Host: v1}},
		{"linux.resources.pids.limit", false, Input{Resources: pids(-2), Host: v1}},
		{"linux.resources.pids.limit", false, Input{Resources: pids(math.MaxInt64), Host: v2}},
		{"linux.resources.pids.limit", true, Input{Resources: pids(5), Host: Host{Unified: true}}},
		{"linux.resources.blockIO.weight", false, Input{Resources: &specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{Weight: new(uint16(9))}}, Host: v1}},
		{"linux.resources.hugepageLimits[0].pageSize", false, Input{Resources: &specs.LinuxResources{
			HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "../2MB"}},
		}, Host: v1}},
		{"linux.resources.hugepageLimits[0]", true, Input{Resources: &specs.LinuxResources{
			HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB"}},
		}, Host: v1}},
		{"linux.resources.network.classID", true, Input{Resources: &specs.LinuxResources{Network: &specs.LinuxNetwork{ClassID: new(uint32(5))}}, Host: v2}},
		{"linux.resources.unified", true, Input{Resources: &specs.LinuxResources{Unified: map[string]string{"memory.high": "1"}}, Host: v1}},
		{"linux.resources.unified", false, Input{Resources: &specs.LinuxResources{Unified: map[string]string{"../cgroup.procs": "1"}}, Host: v2}},
		{"linux.resources.unified", false, Input{Resources: &specs.LinuxResources{Unified: map[string]string{"cgroup.procs": "1"}}, Host: v2}},
		{"linux.resources.unified.misc.max", true, Input{Resources: &specs.LinuxResources{Unified: map[string]string{"misc.max": "1"}}, Host: v2}},
		{"linux.resources.devices", true, Input{Host: bare}},
		{"linux.resources.devices[0]", false, Input{Resources: dev(specs.LinuxDeviceCgroup{Type: "c", Access: "rwx"}), Host: v1}},
		{"linux.resources.devices[0]", false, Input{Resources: dev(specs.LinuxDeviceCgroup{Type: "p", Access: "r"}), Host: v1}},
		{"linux.resources.devices[0]", false, Input{Resources: dev(specs.LinuxDeviceCgroup{Type: "a", Major: new(int64(1)), Access: "r"}), Host: v1}},
		{"linux.resources.devices[0]", false, Input{Resources: dev(specs.LinuxDeviceCgroup{Type: "c", Major: new(int64(-7)), Access: "r"}), Host: v1}},
		{"linux.resources.devices[1]", false, Input{Resources: dev(
			specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: new(int64(8)), Access: "rw"},
			specs.LinuxDeviceCgroup{Type: "c", Major: new(int64(8)), Minor: new(int64(1)), Access: "w"},
		), Host: v1}},
	} {
		tt.in.ID = "id"
		_, err := Plan(tt.in)
		var field *FieldError
		if !errors.As(err, &field) || field.Field != tt.field || errors.Is(err, ErrUnsupported) != tt.unsupported {
			t.Errorf("want an error about %s (unsupported: %v), got %v", tt.field, tt.unsupported, err)
		}
	}
}

func TestPlanKeepsRealLimits(t *testing.T) {
	for _, n := range []int64{0, -1, 4194304} {
		cfg, err := Plan(Input{ID: "id", Host: unifiedHost(), Resources: &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &n}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := cfg.Cgroup.PidsLimit; got == nil || *got != n {
			t.Errorf("pids.limit %d: %v", n, got)
		}
	}
}

// TestPlanDevices shows as text what a configuration's rules come to, for v1, for systemd, and as a v2 program.
func TestPlanDevices(t *testing.T) {
	n := ptr[int64]
	for name, in := range map[string][]specs.LinuxDeviceCgroup{
		"none":       nil,
		"docker":     {{Access: "rwm"}, {Allow: true, Type: "c", Major: n(1), Minor: n(11), Access: "r"}},
		"privileged": {{Allow: true, Access: "rwm"}},
		"denylist":   {{Allow: true, Access: "rwm"}, {Type: "b", Access: "w"}, {Type: "c", Major: n(1), Minor: n(1), Access: "rwm"}},
		"no-tun":     {{Access: "rwm"}, {Type: "c", Major: n(10), Minor: n(200), Access: "rwm"}},
		"take-back": {
			{Access: "rwm"},
			{Allow: true, Type: "b", Major: n(8), Minor: n(0), Access: "rw"},
			{Allow: true, Type: "b", Major: n(8), Minor: n(1), Access: "rw"},
			{Type: "b", Major: n(8), Access: "w"},
		},
		"partial-all": {{Access: "rwm"}, {Allow: true, Type: "a", Access: "r"}},
	} {
		t.Run(name, func(t *testing.T) {
			rules, err := planDevices(in)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, r := range rules {
				fmt.Fprintf(&b, "%-5v %s\n", r.Allow, r.CgroupString())
			}
			b.WriteString("\nsystemd: ")
			if !rules[0].Allow {
				for _, r := range rules[1:] {
					if path, ok := systemdDevice(r); ok {
						fmt.Fprintf(&b, "%s=%s ", path, r.Permissions)
					}
				}
			}
			b.WriteString("\n\n")
			for i, in := range deviceProgram(rules) {
				fmt.Fprintf(&b, "%3d %02x r%d r%d %+d %d\n", i, in.op, in.dst, in.src, in.off, in.imm)
			}
			golden(t, "devices-"+name, b.String())
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -update):\n%s", path, got)
	}
}

func TestLoadRefusesForeignPaths(t *testing.T) {
	cfg, err := Plan(Input{ID: "id", Host: unifiedHost()})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "/etc", "/sys/fs/cgroup", "/sys/fs/cgroup/../../../etc", "/sys/fs/cgroupx/y", "a/b"} {
		s := cfg.State
		s.Paths = map[string]string{"": path}
		if _, err := Load(s); err == nil {
			t.Errorf("path %q accepted", path)
		}
	}
	for name, damage := range map[string]func(*State){
		"driver":    func(s *State) { s.Driver = "" },
		"cgroup":    func(s *State) { s.Cgroup = nil },
		"paths":     func(s *State) { s.Paths = nil },
		"hierarchy": func(s *State) { s.Unified, s.Paths = false, map[string]string{"cpu": "/sys/fs/cgroup/cpu"} },
	} {
		s := cfg.State
		damage(&s)
		if _, err := Load(s); err == nil {
			t.Errorf("state without %s accepted", name)
		}
	}
}

// FuzzPlanPath: whatever the configuration says, the cgroup is strictly below its mount point.
func FuzzPlanPath(f *testing.F) {
	for _, s := range []string{"", "/a", "a/../..", "a.slice:b:c", "../x", "/..", ".", "a.slice:..:.."} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, path string, systemd bool) {
		for _, host := range []Host{hybridHost(), unifiedHost()} {
			cfg, err := Plan(Input{ID: "id", CgroupsPath: path, Systemd: systemd, Host: host})
			if err != nil {
				continue
			}
			for c, dir := range cfg.Paths {
				mount := mountRoot
				if h, ok := host.hierarchy(c); ok {
					mount = h.Mount
				}
				if !strings.HasPrefix(dir, mount+"/") || filepath.Clean(dir) != dir || len(dir) == len(mount)+1 {
					t.Errorf("%q: %q is not below %q", path, dir, mount)
				}
			}
		}
	})
}
