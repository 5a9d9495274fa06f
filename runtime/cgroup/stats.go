package cgroup

import (
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/cgroups"
)

// Stats is a measurement in the form of runc's `events --stats`: its JSON names are that command's. Times are in
// nanoseconds, sizes in bytes. Source: runc, types/events.go.
type Stats struct {
	CPU     CPUStats                `json:"cpu"`
	CPUSet  cgroups.CPUSetStats     `json:"cpuset"`
	Memory  MemoryStats             `json:"memory"`
	Pids    PidsStats               `json:"pids"`
	Blkio   BlkioStats              `json:"blkio"`
	Hugetlb map[string]HugetlbStats `json:"hugetlb"`
	// IntelRdt is always empty; consumers expect the key.
	IntelRdt struct{} `json:"intel_rdt"`
	// NetworkInterfaces belongs to the network namespace; whoever knows it fills it in.
	NetworkInterfaces []NetworkStats `json:"network_interfaces"`
}

// CPUStats is processor time, throttling and pressure.
type CPUStats struct {
	Usage      CPUUsage          `json:"usage"`
	Throttling Throttling        `json:"throttling"`
	PSI        *cgroups.PSIStats `json:"psi,omitempty"`
}

// CPUUsage is processor time since the cgroup was made.
type CPUUsage struct {
	Total        uint64   `json:"total,omitempty"`
	Percpu       []uint64 `json:"percpu,omitempty"`
	PercpuKernel []uint64 `json:"percpu_kernel,omitempty"`
	PercpuUser   []uint64 `json:"percpu_user,omitempty"`
	Kernel       uint64   `json:"kernel"`
	User         uint64   `json:"user"`
}

// Throttling counts periods in which the quota was used up.
type Throttling struct {
	Periods          uint64 `json:"periods,omitempty"`
	ThrottledPeriods uint64 `json:"throttledPeriods,omitempty"`
	ThrottledTime    uint64 `json:"throttledTime,omitempty"`
}

// MemoryStats is memory by kind; Raw is memory.stat.
type MemoryStats struct {
	Cache     uint64            `json:"cache,omitempty"`
	Usage     MemoryEntry       `json:"usage"`
	Swap      MemoryEntry       `json:"swap"`
	Kernel    MemoryEntry       `json:"kernel"`
	KernelTCP MemoryEntry       `json:"kernelTCP"`
	Raw       map[string]uint64 `json:"raw,omitempty"`
	// Events is memory.events, or memory.oom_control of v1; nil without the controller. `events --stats` does not print
	// it, as runc's does not.
	Events map[string]uint64 `json:"-"`
	PSI    *cgroups.PSIStats `json:"psi,omitempty"`
}

// MemoryEntry is one kind of memory.
type MemoryEntry struct {
	Limit   uint64 `json:"limit"`
	Usage   uint64 `json:"usage,omitempty"`
	Max     uint64 `json:"max,omitempty"`
	Failcnt uint64 `json:"failcnt"`
}

// PidsStats counts processes and threads; Limit 0 is none.
type PidsStats struct {
	Current uint64 `json:"current,omitempty"`
	Limit   uint64 `json:"limit,omitempty"`
}

// BlkioStats is block I/O by device.
type BlkioStats struct {
	IoServiceBytesRecursive []BlkioEntry      `json:"ioServiceBytesRecursive,omitempty"`
	IoServicedRecursive     []BlkioEntry      `json:"ioServicedRecursive,omitempty"`
	IoQueuedRecursive       []BlkioEntry      `json:"ioQueueRecursive,omitempty"`
	IoServiceTimeRecursive  []BlkioEntry      `json:"ioServiceTimeRecursive,omitempty"`
	IoWaitTimeRecursive     []BlkioEntry      `json:"ioWaitTimeRecursive,omitempty"`
	IoMergedRecursive       []BlkioEntry      `json:"ioMergedRecursive,omitempty"`
	IoTimeRecursive         []BlkioEntry      `json:"ioTimeRecursive,omitempty"`
	SectorsRecursive        []BlkioEntry      `json:"sectorsRecursive,omitempty"`
	PSI                     *cgroups.PSIStats `json:"psi,omitempty"`
}

// BlkioEntry is one counter of one device.
type BlkioEntry struct {
	Major uint64 `json:"major,omitempty"`
	Minor uint64 `json:"minor,omitempty"`
	Op    string `json:"op,omitempty"`
	Value uint64 `json:"value,omitempty"`
}

// HugetlbStats is huge pages of one size.
type HugetlbStats struct {
	Usage   uint64 `json:"usage,omitempty"`
	Max     uint64 `json:"max,omitempty"`
	Failcnt uint64 `json:"failcnt"`
}

// NetworkStats is the traffic of one interface.
type NetworkStats struct {
	Name      string
	RxBytes   uint64
	RxPackets uint64
	RxErrors  uint64
	RxDropped uint64
	TxBytes   uint64
	TxPackets uint64
	TxErrors  uint64
	TxDropped uint64
}

// Stats measures.
func (g *Group) Stats() (*Stats, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s, err := g.manager.GetStats()
	if err != nil {
		return nil, fmt.Errorf("read statistics of cgroup %s: %w", g.mainDir(), err)
	}
	out := convertStats(s)
	if dir := g.path("memory"); dir != "" {
		file := "memory.oom_control"
		if g.state.Unified {
			file = "memory.events"
		}
		if out.Memory.Events, err = readKeys(dir, file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read memory events of %s: %w", dir, err)
		}
	}
	return out, nil
}

func convertStats(s *cgroups.Stats) *Stats {
	cpu, mem, io := &s.CpuStats, &s.MemoryStats, &s.BlkioStats
	out := &Stats{
		CPU: CPUStats{
			Usage: CPUUsage{
				Total:        cpu.CpuUsage.TotalUsage,
				Percpu:       cpu.CpuUsage.PercpuUsage,
				PercpuKernel: cpu.CpuUsage.PercpuUsageInKernelmode,
				PercpuUser:   cpu.CpuUsage.PercpuUsageInUsermode,
				Kernel:       cpu.CpuUsage.UsageInKernelmode,
				User:         cpu.CpuUsage.UsageInUsermode,
			},
			Throttling: Throttling(cpu.ThrottlingData),
			PSI:        cpu.PSI,
		},
		CPUSet: s.CPUSetStats,
		Memory: MemoryStats{
			Cache:     mem.Cache,
			Usage:     convertMemory(mem.Usage),
			Swap:      convertMemory(mem.SwapUsage),
			Kernel:    convertMemory(mem.KernelUsage),
			KernelTCP: convertMemory(mem.KernelTCPUsage),
			Raw:       mem.Stats,
			PSI:       mem.PSI,
		},
		Pids: PidsStats(s.PidsStats),
		Blkio: BlkioStats{
			IoServiceBytesRecursive: convertBlkio(io.IoServiceBytesRecursive),
			IoServicedRecursive:     convertBlkio(io.IoServicedRecursive),
			IoQueuedRecursive:       convertBlkio(io.IoQueuedRecursive),
			IoServiceTimeRecursive:  convertBlkio(io.IoServiceTimeRecursive),
			IoWaitTimeRecursive:     convertBlkio(io.IoWaitTimeRecursive),
			IoMergedRecursive:       convertBlkio(io.IoMergedRecursive),
			IoTimeRecursive:         convertBlkio(io.IoTimeRecursive),
			SectorsRecursive:        convertBlkio(io.SectorsRecursive),
			PSI:                     io.PSI,
		},
		Hugetlb: map[string]HugetlbStats{},
	}
	for size, h := range s.HugetlbStats {
		out.Hugetlb[size] = HugetlbStats{Usage: h.Usage, Max: h.MaxUsage, Failcnt: h.Failcnt}
	}
	return out
}

func convertMemory(m cgroups.MemoryData) MemoryEntry {
	return MemoryEntry{Limit: m.Limit, Usage: m.Usage, Max: m.MaxUsage, Failcnt: m.Failcnt}
}

func convertBlkio(in []cgroups.BlkioStatEntry) []BlkioEntry {
	var out []BlkioEntry
	for _, e := range in {
		out = append(out, BlkioEntry(e))
	}
	return out
}
