package cgroup

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestSet(t *testing.T) {
	host := testHost(t)
	if !host.has("memory") {
		t.Skip("probe memory: the unified hierarchy of a hybrid host hasn't got the controller")
	}
	g := testGroup(t, &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(64 << 20))},
		Pids:   &specs.LinuxPids{Limit: new(int64(64))},
		CPU:    &specs.LinuxCPU{Quota: new(int64(50000)), Period: new(uint64(100000))},
	})
	memory := "memory.limit_in_bytes"
	if host.Unified {
		memory = "memory.max"
	}
	for _, tt := range []struct {
		name, controller, file, want string
		r                            specs.LinuxResources
	}{
		{"pids 0 is a limit", "pids", "pids.max", "1", specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(0))}}},
		{"pids -1 is none", "pids", "pids.max", "max", specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(-1))}}},
		{
			"memory raised", "memory", memory, "134217728",
			specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(128 << 20))}},
		},
		{"0 is no change, as Docker's update names what stays", "memory", memory, "134217728", specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: new(int64(0)), Reservation: new(int64(0)), Swap: new(int64(256 << 20))},
			CPU:    &specs.LinuxCPU{Shares: new(uint64(0)), Quota: new(int64(0)), Period: new(uint64(0))},
		}},
		{"the rest stays", "pids", "pids.max", "max", specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: new(uint64(100))}}},
		{"cpu idle", "cpu", "cpu.idle", "1", specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: new(uint64(0)), Idle: new(int64(1))}}},
	} {
		if err := g.Set(&tt.r); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := readFile(t, g, tt.controller, tt.file); got != tt.want {
			t.Errorf("%s: %s = %q, want %q", tt.name, tt.file, got, tt.want)
		}
	}
	if got := g.State().Cgroup; got.Memory != 128<<20 || got.CpuQuota != 50000 || got.CpuPeriod != 100000 {
		t.Errorf("in the state: memory %d, quota %d, period %d", got.Memory, got.CpuQuota, got.CpuPeriod)
	}
}

func TestSetFailureChangesNothing(t *testing.T) {
	host := testHost(t)
	if !host.has("memory") {
		t.Skip("probe memory: the unified hierarchy of a hybrid host hasn't got the controller")
	}
	g := testGroup(t, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(64 << 20))}})
	// Block devices come after memory and pids on v1 and v2: these are written already when the kernel refuses.
	noDevice := specs.LinuxThrottleDevice{Rate: 1000}
	noDevice.Major, noDevice.Minor = 255, 255
	err := g.Set(&specs.LinuxResources{
		Memory:  &specs.LinuxMemory{Limit: new(int64(32 << 20))},
		BlockIO: &specs.LinuxBlockIO{ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{noDevice}},
		Pids:    &specs.LinuxPids{Limit: new(int64(5))},
	})
	if err == nil || !strings.Contains(err.Error(), "255:255") {
		t.Fatalf("limit for a device that isn't there: %v", err)
	}
	file := "memory.limit_in_bytes"
	if host.Unified {
		file = "memory.max"
	}
	if got := readFile(t, g, "memory", file); got != strconv.Itoa(64<<20) {
		t.Errorf("memory limit %s", got)
	}
	if got := readFile(t, g, "pids", "pids.max"); got != "max" {
		t.Errorf("pids limit %s, there was none", got)
	}
	if got := g.State().Cgroup.Memory; got != 64<<20 {
		t.Errorf("memory in the state: %d", got)
	}
}

// TestSetJoinsCPUSetLate: Create leaves cpuset out where it limits nothing; an update must reach running processes.
func TestSetJoinsCPUSetLate(t *testing.T) {
	if testHost(t).Unified {
		return
	}
	g := testGroup(t, nil)
	if dir := g.Path("cpuset"); dir != "" {
		t.Fatalf("cpuset joined at once: %s", dir)
	}
	p := run(t, g, "sleep 100 & sleep 100")
	eventually(t, "three processes", func() bool { pids, _ := g.PIDs(true); return len(pids) == 3 })
	if err := g.Set(&specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "1"}}); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, g, "cpuset", "cpuset.cpus"); got != "1" {
		t.Errorf("cpuset.cpus %q", got)
	}
	pids, err := readPIDs(g.Path("cpuset"), true)
	if err != nil || len(pids) != 3 {
		t.Errorf("in the cpuset: %v, %v", pids, err)
	}
	if s := g.State(); s.Paths["cpuset"] != filepath.Join(mountRoot, "cpuset", testPath(t)) || len(s.Late) > 0 {
		t.Errorf("state: %+v", s)
	}
	_ = p.Process.Kill()
}

// TestCPUSetOfAncestorIsJoined: who confines a parent in the cpuset hierarchy confines the containers below it.
func TestCPUSetOfAncestorIsJoined(t *testing.T) {
	host := testHost(t)
	if host.Unified {
		return
	}
	if _, err := new(madeDirs).add(filepath.Join(mountRoot, "cpuset", filepath.Dir(testPath(t)))); err != nil {
		t.Fatal(err)
	}
	g := testGroup(t, nil)
	if g.Path("cpuset") == "" {
		t.Fatal("cpuset not joined")
	}
	if got := readFile(t, g, "cpuset", "cpuset.mems"); got != "0" {
		t.Errorf("cpuset.mems %q", got)
	}
}

func TestMemoryCheckBeforeUpdate(t *testing.T) {
	host := testHost(t)
	if !host.has("memory") {
		t.Skip("probe memory: the unified hierarchy of a hybrid host hasn't got the controller")
	}
	g := testGroup(t, nil)
	run(t, g, "head -c 8000000 /dev/zero | tail -c 8000000 | sleep 100")
	file := "memory.usage_in_bytes"
	if host.Unified {
		file = "memory.current"
	}
	eventually(t, "memory in use", func() bool {
		n, err := readUint(g.Path("memory"), file)
		return err == nil && n > 1<<20
	})
	r := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(8192)), CheckBeforeUpdate: new(true)}}
	var field *FieldError
	if err := g.Set(r); !errors.As(err, &field) || field.Field != "linux.resources.memory.limit" {
		t.Errorf("limit below usage: %v", err)
	}
}
