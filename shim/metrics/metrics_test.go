package metrics

import (
	"testing"

	"github.com/agentsafe/agentsafe/runtime/cgroup"
)

func stats() *cgroup.Stats {
	return &cgroup.Stats{
		CPU: cgroup.CPUStats{Usage: cgroup.CPUUsage{Total: 5_000_000, User: 3_000_000, Kernel: 2_000_000}},
		Memory: cgroup.MemoryStats{
			Usage: cgroup.MemoryEntry{Usage: 100, Limit: 1000, Max: 200}, Swap: cgroup.MemoryEntry{Usage: 130, Limit: 1500},
			Raw: map[string]uint64{
				"pgpgin": 1, "pgmajfault": 2, "total_pgfault": 3, "hierarchical_memory_limit": 4, "hierarchical_memsw_limit": 5,
				"total_inactive_file": 6, "rss": 7, "anon": 8, "pgfault": 9, "workingset_nodereclaim": 10,
			},
			Events: map[string]uint64{"under_oom": 1, "oom_kill": 4, "oom": 5, "max": 6},
		},
		Pids:    cgroup.PidsStats{Current: 3, Limit: 50},
		Hugetlb: map[string]cgroup.HugetlbStats{"2MB": {Usage: 1}, "1GB": {Usage: 2}},
		Blkio: cgroup.BlkioStats{
			IoServiceBytesRecursive: []cgroup.BlkioEntry{{Major: 8, Op: "Read", Value: 11}, {Major: 8, Op: "Write", Value: 12}, {Major: 9, Op: "Read", Value: 13}},
			IoServicedRecursive:     []cgroup.BlkioEntry{{Major: 8, Op: "Read", Value: 14}},
		},
	}
}

func TestV1(t *testing.T) {
	m := V1(stats())
	got := []uint64{
		m.CPU.Usage.Total, m.Memory.PgPgIn, m.Memory.PgMajFault, m.Memory.TotalPgFault, m.Memory.HierarchicalMemoryLimit,
		m.Memory.HierarchicalSwapLimit, m.Memory.TotalInactiveFile, m.Memory.RSS, m.Memory.Usage.Usage, m.Pids.Limit,
		m.MemoryOomControl.UnderOom, m.MemoryOomControl.OomKill,
	}
	want := []uint64{5_000_000, 1, 2, 3, 4, 5, 6, 7, 100, 50, 1, 4}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("number %d: got %d, want %d", i, got[i], want[i])
		}
	}
	if len(m.Hugetlb) != 2 || m.Hugetlb[0].Pagesize != "1GB" || len(m.Blkio.IoServiceBytesRecursive) != 3 {
		t.Errorf("got %v", m)
	}
}

func TestV2(t *testing.T) {
	m := V2(stats())
	got := []uint64{
		m.CPU.UsageUsec, m.CPU.SystemUsec, m.Memory.Anon, m.Memory.Pgfault, m.Memory.WorkingsetNodereclaim, m.Memory.Usage,
		m.Memory.UsageLimit, m.Memory.SwapUsage, m.Memory.SwapLimit, m.Pids.Current,
		m.MemoryEvents.OomKill, m.MemoryEvents.Oom, m.MemoryEvents.Max,
	}
	want := []uint64{5000, 2000, 8, 9, 10, 100, 1000, 30, 500, 3, 4, 5, 6}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("number %d: got %d, want %d", i, got[i], want[i])
		}
	}
	if len(m.Io.Usage) != 2 || m.Io.Usage[0].Rbytes != 11 || m.Io.Usage[0].Wbytes != 12 || m.Io.Usage[0].Rios != 14 || m.Io.Usage[1].Rbytes != 13 {
		t.Errorf("got %v", m.Io)
	}
}

// Without the memory controller there is nothing to say about memory.
func TestNoMemoryController(t *testing.T) {
	s := stats()
	s.Memory.Events = nil
	if V1(s).MemoryOomControl != nil || V2(s).MemoryEvents != nil {
		t.Error("events out of nothing")
	}
}
