package profiles

import (
	"maps"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Whoever may ask an engine to change a running container's limits gets no more than the profile has.
func TestPlanUpdate(t *testing.T) {
	const mib = 1 << 20
	p := agent()
	p.Limits = Limits{MemoryBytes: 512 * mib, PIDs: 100, CPUs: 1.5}
	type memory = specs.LinuxMemory
	for _, c := range []struct {
		name    string
		in      specs.LinuxResources
		lowered int
		want    func(out *specs.LinuxResources) bool
	}{
		{"memory without end", specs.LinuxResources{Memory: &memory{Limit: new(int64(-1)), Swap: new(int64(-1))}}, 1, func(out *specs.LinuxResources) bool {
			return *out.Memory.Limit == 512*mib && *out.Memory.Swap == 512*mib
		}},
		{"more memory", specs.LinuxResources{Memory: &memory{Limit: new(int64(513 * mib))}}, 1, func(out *specs.LinuxResources) bool { return *out.Memory.Limit == 512*mib && out.Memory.Swap == nil }},
		{"less memory", specs.LinuxResources{Memory: &memory{Limit: new(int64(mib))}}, 0, func(out *specs.LinuxResources) bool { return *out.Memory.Limit == mib }},
		{"processes", specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(-1))}}, 1, func(out *specs.LinuxResources) bool { return *out.Pids.Limit == 100 && out.Memory == nil }},
		{"fewer processes", specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(5))}}, 0, func(out *specs.LinuxResources) bool { return *out.Pids.Limit == 5 }},
		{"quota", specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(-1))}}, 1, func(out *specs.LinuxResources) bool { return *out.CPU.Quota == 75_000 && *out.CPU.Period == 50_000 }},
		{"a period that makes more of the quota in force", specs.LinuxResources{CPU: &specs.LinuxCPU{Period: new(uint64(1000))}}, 1, func(out *specs.LinuxResources) bool {
			return *out.CPU.Quota == 1500 && *out.CPU.Period == 1000
		}},
		{"a lower quota", specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(10_000))}}, 0, func(out *specs.LinuxResources) bool { return *out.CPU.Quota == 10_000 && out.CPU.Period == nil }},
		{"processors alone", specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "0"}}, 0, func(out *specs.LinuxResources) bool { return out.CPU.Quota == nil && out.CPU.Cpus == "0" }},
		{"nothing", specs.LinuxResources{}, 0, func(out *specs.LinuxResources) bool { return out.Memory == nil && out.CPU == nil && out.Pids == nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, notes := p.PlanUpdate(&c.in, 40_000, 50_000)
			if !c.want(out) || len(notes) != c.lowered {
				t.Errorf("%+v, %v", out, notes)
			}
		})
	}
	if out, notes := builtin(t, NameNone).PlanUpdate(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(-1))}}, 0, 0); *out.Pids.Limit != -1 || notes != nil {
		t.Errorf("none: %+v, %v", out, notes)
	}
}

// A file of cgroup v2 that is named is written after the fields for the same, and would win.
func TestAttack_LimitsByUnifiedNames(t *testing.T) {
	p := agent()
	p.Limits = Limits{MemoryBytes: 4096, PIDs: 10, CPUs: 0.5}
	for _, c := range []struct{ in, want map[string]string }{
		{nil, nil},
		{map[string]string{"memory.max": "max", "pids.max": "max", "cpu.max": "max"}, map[string]string{"memory.max": "4096", "pids.max": "10", "cpu.max": "50000 100000"}},
		{map[string]string{"memory.max": "1G", "pids.max": "-1", "cpu.max": "max 1000"}, map[string]string{"memory.max": "4096", "pids.max": "10", "cpu.max": "500 1000"}},
		{map[string]string{"memory.swap.max": "max"}, map[string]string{"memory.swap.max": "0"}},
		{map[string]string{"memory.max": "4000", "memory.swap.max": "100"}, map[string]string{"memory.max": "4000", "memory.swap.max": "96"}},
		{map[string]string{"memory.max": "4000", "memory.swap.max": "90"}, map[string]string{"memory.max": "4000", "memory.swap.max": "90"}},
		{map[string]string{"memory.max": "100", "pids.max": "3", "cpu.max": "400 1000"}, map[string]string{"memory.max": "100", "pids.max": "3", "cpu.max": "400 1000"}},
		{map[string]string{"cpu.max": "1 2 3", "memory.low": "5"}, map[string]string{"cpu.max": "1 2", "memory.low": "5"}},
		{map[string]string{"cpu.max": "500 0", "memory.max": " 12\n"}, map[string]string{"cpu.max": "500 100000", "memory.max": " 12\n"}},
	} {
		spec := loadSpec(t, "docker")
		spec.Linux.Resources.Unified = c.in
		plan, err := PlanContainer(spec, p, hostOf(spec))
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.Spec.Linux.Resources.Unified; !maps.Equal(got, c.want) {
			t.Errorf("%v gives %v, want %v", c.in, got, c.want)
		}
		out, _ := p.PlanUpdate(&specs.LinuxResources{Unified: c.in}, 0, 0)
		if !maps.Equal(out.Unified, c.want) {
			t.Errorf("update: %v gives %v, want %v", c.in, out.Unified, c.want)
		}
	}
}
