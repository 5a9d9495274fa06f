package profiles

import (
	"reflect"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestPlanContainer_HostNamespaces(t *testing.T) {
	for _, kind := range []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace,
	} {
		missing := loadSpec(t, "containerd")
		dropNamespace(missing, kind)
		_, err := PlanContainer(missing, agent(), hostOf(missing))
		wantRefused(t, err, "linux.namespaces "+string(kind), "")

		joined := loadSpec(t, "containerd")
		namespace(joined, kind).Path = "/proc/1/ns/x"
		host := hostOf(joined)
		if _, err := PlanContainer(joined, agent(), host); err != nil {
			t.Errorf("%s of another container: %v", kind, err)
		}
		host.HostNamespaces = map[specs.LinuxNamespaceType]bool{kind: true}
		_, err = PlanContainer(joined, agent(), host)
		wantRefused(t, err, "linux.namespaces "+string(kind), "")

		if kind == specs.MountNamespace {
			continue
		}
		p := agent()
		p.Host.Namespaces = []specs.LinuxNamespaceType{kind}
		if _, err := PlanContainer(missing, p, hostOf(missing)); err != nil {
			t.Errorf("%s granted: %v", kind, err)
		}
	}
}

func TestPlanContainer_NetDevices(t *testing.T) {
	spec := loadSpec(t, "containerd")
	spec.Linux.NetDevices = map[string]specs.LinuxNetDevice{"eth0": {}}
	_, err := PlanContainer(spec, agent(), hostOf(spec))
	wantRefused(t, err, "linux.netDevices", "")
}

// CVE-2022-0811: "+" smuggled a second parameter past a prefix check.
func TestAttack_CVE_2022_0811_Sysctls(t *testing.T) {
	for key, allowed := range map[string]bool{
		"net.ipv4.ip_unprivileged_port_start":          true,
		"net.ipv4.ping_group_range":                    true,
		"net/ipv4/ip_forward":                          true,
		"kernel.shmmax":                                true,
		"kernel.msgmax":                                true,
		"kernel.sem":                                   true,
		"fs.mqueue.msg_max":                            true,
		"kernel.hostname":                              true,
		"kernel.core_pattern":                          false,
		"kernel/core_pattern":                          false,
		"net.../../kernel/core_pattern":                false,
		"net..kernel.core_pattern":                     false,
		"kernel.shm_rmid_forced+kernel.core_pattern=x": false,
		"net.ipv4.x+y":                                 false,
		"vm.overcommit":                                false,
		"fs.file-max":                                  false,
		"kernel.shmmax2":                               false,
		"":                                             false,
		"network.something":                            false,
	} {
		spec := loadSpec(t, "containerd")
		spec.Linux.Sysctl = map[string]string{key: "1"}
		_, err := PlanContainer(spec, agent(), hostOf(spec))
		if (err == nil) != allowed {
			t.Errorf("%q: %v", key, err)
		}
	}
	shared := loadSpec(t, "containerd")
	dropNamespace(shared, specs.NetworkNamespace)
	shared.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1"}
	p := agent()
	p.Network.Mode = NetworkHost
	_, err := PlanContainer(shared, p, hostOf(shared))
	wantRefused(t, err, "linux.sysctl net.ipv4.ip_forward", "host: {sysctls: [net.ipv4.ip_forward]}")
}

func TestPlanContainer_DeviceRules(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for _, c := range []struct {
		name string
		rule specs.LinuxDeviceCgroup
		what string
	}{
		{"deny all", specs.LinuxDeviceCgroup{Access: "rwm"}, ""},
		{"null", specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: n(1), Minor: n(3), Access: "rwm"}, ""},
		{"terminals", specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: n(136), Access: "rwm"}, ""},
		{"make any node", specs.LinuxDeviceCgroup{Allow: true, Type: "b", Access: "m"}, ""},
		{"privileged", specs.LinuxDeviceCgroup{Allow: true, Access: "rwm"}, "allows all devices"},
		{"privileged, spelt out", specs.LinuxDeviceCgroup{Allow: true, Type: "a"}, "allows all devices"},
		{"all of a kind", specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: n(-1), Minor: n(-1), Access: "r"}, "c *:* r"},
		{"all of major 1", specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: n(1), Access: "rw"}, "c 1:* rw"},
		{"mem", specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: n(1), Minor: n(1), Access: "r"}, "c 1:1 r"},
		{"disk", specs.LinuxDeviceCgroup{Allow: true, Type: "b", Major: n(8), Minor: n(0), Access: "r"}, "b 8:0 r"},
		{"fuse", specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: n(10), Minor: n(229), Access: "rwm"}, "c 10:229 rw"},
		{"tun", specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: n(10), Minor: n(200), Access: "rw"}, "c 10:200 rw"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := loadSpec(t, "containerd")
			spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{c.rule}
			_, err := PlanContainer(spec, agent(), hostOf(spec))
			if c.what == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantRefused(t, err, c.what, "host: {devices: [")
		})
	}
}

func TestDevice_Covers(t *testing.T) {
	for _, c := range []struct {
		grant, ask string
		want       bool
	}{
		{"c 10:229 rwm", "c 10:229 rw", true},
		{"c 10:229 rw", "c 10:229 rwm", false},
		{"c 10:* rwm", "c 10:229 rw", true},
		{"c *:* rwm", "b 8:0 r", false},
		{"c 10:229 rw", "c 10:* rw", false},
	} {
		g, err := ParseDevice(c.grant)
		if err != nil {
			t.Fatal(err)
		}
		a, err := ParseDevice(c.ask)
		if err != nil {
			t.Fatal(err)
		}
		if g.covers(a) != c.want {
			t.Errorf("%s covers %s: want %v", c.grant, c.ask, c.want)
		}
	}
	for _, bad := range []string{"", "c 1:3", "x 1:3 rw", "c 1:3 rwx", "c -1:3 rw", "c *:3 rw", "c 1 rw", "c 1:3 rw m"} {
		if d, err := ParseDevice(bad); err == nil {
			t.Errorf("%q is read as %v", bad, d)
		}
	}
}

func TestPlanContainer_Paths(t *testing.T) {
	spec := loadSpec(t, "containerd")
	spec.Linux.MaskedPaths, spec.Linux.ReadonlyPaths = []string{"/proc/kcore"}, []string{"/proc/asound"}
	plan, err := PlanContainer(spec, agent(), hostOf(spec))
	if err != nil {
		t.Fatal(err)
	}
	checkWithin(t, plan, agent())
	if plan.Spec.Linux.MaskedPaths[0] != "/proc/kcore" || slices.Contains(plan.Spec.Linux.MaskedPaths, "/proc/asound") {
		t.Errorf("masked %v", plan.Spec.Linux.MaskedPaths)
	}
	p := agent()
	p.Syscalls.Packs = []Pack{PackContainers}
	plan, err = PlanContainer(spec, p, hostOf(spec))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(plan.Spec.Linux.MaskedPaths, spec.Linux.MaskedPaths) {
		t.Errorf("pack containers masks %v", plan.Spec.Linux.MaskedPaths)
	}
}

func TestPlanLimits(t *testing.T) {
	p := agent()
	p.Limits = Limits{MemoryBytes: 100, PIDs: 10, CPUs: 0.5}
	i := func(v int64) *int64 { return &v }
	for _, c := range []struct {
		name                string
		in                  *specs.LinuxResources
		memory, pids, quota int64
	}{
		{"none", nil, 100, 10, 50_000},
		{"lower ones stay", &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: i(50)}, Pids: &specs.LinuxPids{Limit: i(5)},
			CPU: &specs.LinuxCPU{Quota: i(10_000), Period: new(uint64(100_000))},
		}, 50, 5, 10_000},
		{"unlimited", &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: i(-1), Swap: i(-1), Reservation: i(200)}, Pids: &specs.LinuxPids{Limit: i(-1)},
			CPU: &specs.LinuxCPU{Quota: i(-1), Period: new(uint64(50_000))},
		}, 100, 10, 25_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := p.planLimits(c.in)
			if *out.Memory.Limit != c.memory || *out.Pids.Limit != c.pids || *out.CPU.Quota != c.quota {
				t.Errorf("memory %d pids %d quota %d", *out.Memory.Limit, *out.Pids.Limit, *out.CPU.Quota)
			}
			if s := out.Memory.Swap; s != nil && (*s < 0 || *s > 100) {
				t.Errorf("swap %d", *s)
			}
			if r := out.Memory.Reservation; r != nil && *r > 100 {
				t.Errorf("reservation %d", *r)
			}
		})
	}
	if in := (&specs.LinuxResources{}); agent().planLimits(in) != in {
		t.Error("a profile without limits changes nothing")
	}
}
