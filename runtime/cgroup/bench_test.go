package cgroup

import (
	"os/exec"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// BenchmarkLife is what a start pays: plan, create with Docker's usual limits, place a process, destroy.
func BenchmarkLife(b *testing.B) {
	host, err := ReadHost()
	if err != nil {
		b.Fatal(err)
	}
	in := Input{ID: "bench", CgroupsPath: testParent, Host: host, Resources: &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}},
		Memory:  &specs.LinuxMemory{Limit: new(int64(64 << 20))},
		Pids:    &specs.LinuxPids{Limit: new(int64(100))},
		CPU:     &specs.LinuxCPU{Shares: new(uint64(512))},
	}}
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		b.Fatal(err)
	}
	defer child.Wait()         //nolint:errcheck // killed
	defer child.Process.Kill() //nolint:errcheck // ours
	for b.Loop() {
		cfg, err := Plan(in)
		if err != nil {
			b.Fatal(err)
		}
		g, err := Create(cfg)
		if err != nil {
			b.Fatal(err)
		}
		if err := g.Add(child.Process.Pid); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		moveHome(b, host, child.Process.Pid)
		b.StartTimer()
		if err := g.Destroy(); err != nil {
			b.Fatal(err)
		}
	}
}

func moveHome(tb testing.TB, host Host, pid int) {
	tb.Helper()
	for _, h := range host.Hierarchies {
		if err := placeProcess(h.Mount+h.Own, pid); err != nil {
			tb.Fatal(err)
		}
	}
}
