package metrics

import (
	"maps"
	"math"
	"slices"
	"strings"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/opencontainers/cgroups"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agentsafe/agentsafe/runtime/cgroup"
)

// V1 makes the metrics of cgroup v1.
func V1(s *cgroup.Stats) *v1.Metrics {
	out := &v1.Metrics{
		Pids: &v1.PidsStat{Current: s.Pids.Current, Limit: s.Pids.Limit},
		CPU: &v1.CPUStat{
			Usage: &v1.CPUUsage{
				Total: s.CPU.Usage.Total, Kernel: s.CPU.Usage.Kernel, User: s.CPU.Usage.User, PerCPU: s.CPU.Usage.Percpu,
			},
			Throttling: &v1.Throttle{
				Periods: s.CPU.Throttling.Periods, ThrottledPeriods: s.CPU.Throttling.ThrottledPeriods,
				ThrottledTime: s.CPU.Throttling.ThrottledTime,
			},
		},
		Memory: &v1.MemoryStat{
			Usage: entry(s.Memory.Usage), Swap: entry(s.Memory.Swap), Kernel: entry(s.Memory.Kernel),
			KernelTCP: entry(s.Memory.KernelTCP),
		},
		Blkio: &v1.BlkIOStat{
			IoServiceBytesRecursive: blkio(s.Blkio.IoServiceBytesRecursive),
			IoServicedRecursive:     blkio(s.Blkio.IoServicedRecursive),
			IoQueuedRecursive:       blkio(s.Blkio.IoQueuedRecursive),
			IoServiceTimeRecursive:  blkio(s.Blkio.IoServiceTimeRecursive),
			IoWaitTimeRecursive:     blkio(s.Blkio.IoWaitTimeRecursive),
			IoMergedRecursive:       blkio(s.Blkio.IoMergedRecursive),
			IoTimeRecursive:         blkio(s.Blkio.IoTimeRecursive),
			SectorsRecursive:        blkio(s.Blkio.SectorsRecursive),
		},
	}
	// The message's fields are the keys of memory.stat, but for three that have underscores of their own.
	fill(out.Memory, s.Memory.Raw, func(field string) string {
		key := strings.NewReplacer("pg_pg_", "pgpg", "pg_fault", "pgfault", "pg_maj_fault", "pgmajfault").Replace(field)
		return strings.Replace(key, "hierarchical_swap_limit", "hierarchical_memsw_limit", 1)
	})
	// CRI's container_oom_events_total, and whether a container's end was one for lack of memory.
	if s.Memory.Events != nil {
		out.MemoryOomControl = &v1.MemoryOomControl{}
		fill(out.MemoryOomControl, s.Memory.Events, func(field string) string { return field })
	}
	for _, size := range slices.Sorted(maps.Keys(s.Hugetlb)) {
		h := s.Hugetlb[size]
		out.Hugetlb = append(out.Hugetlb, &v1.HugetlbStat{Usage: h.Usage, Max: h.Max, Failcnt: h.Failcnt, Pagesize: size})
	}
	return out
}

func entry(m cgroup.MemoryEntry) *v1.MemoryEntry {
	return &v1.MemoryEntry{Limit: m.Limit, Usage: m.Usage, Max: m.Max, Failcnt: m.Failcnt}
}

func blkio(in []cgroup.BlkioEntry) []*v1.BlkIOEntry {
	out := make([]*v1.BlkIOEntry, 0, len(in))
	for _, e := range in {
		out = append(out, &v1.BlkIOEntry{Op: e.Op, Major: e.Major, Minor: e.Minor, Value: e.Value})
	}
	return out
}

// V2 makes the metrics of cgroup v2.
func V2(s *cgroup.Stats) *v2.Metrics {
	const perMicrosecond = 1000
	out := &v2.Metrics{
		Pids: &v2.PidsStat{Current: s.Pids.Current, Limit: s.Pids.Limit},
		CPU: &v2.CPUStat{
			UsageUsec: s.CPU.Usage.Total / perMicrosecond, UserUsec: s.CPU.Usage.User / perMicrosecond,
			SystemUsec: s.CPU.Usage.Kernel / perMicrosecond, NrPeriods: s.CPU.Throttling.Periods,
			NrThrottled: s.CPU.Throttling.ThrottledPeriods, ThrottledUsec: s.CPU.Throttling.ThrottledTime / perMicrosecond,
			PSI: psi(s.CPU.PSI),
		},
		Memory: &v2.MemoryStat{},
		Io:     &v2.IOStat{Usage: ioUsage(&s.Blkio), PSI: psi(s.Blkio.PSI)},
	}
	fill(out.Memory, s.Memory.Raw, func(field string) string { return field })
	out.Memory.Usage, out.Memory.UsageLimit, out.Memory.MaxUsage = s.Memory.Usage.Usage, s.Memory.Usage.Limit, s.Memory.Usage.Max
	// The library adds memory to swap, as v1 does; the message wants swap alone.
	out.Memory.SwapUsage = subtract(s.Memory.Swap.Usage, s.Memory.Usage.Usage)
	out.Memory.SwapLimit = s.Memory.Swap.Limit
	if out.Memory.SwapLimit != math.MaxUint64 {
		out.Memory.SwapLimit = subtract(out.Memory.SwapLimit, s.Memory.Usage.Limit)
	}
	out.Memory.PSI = psi(s.Memory.PSI)
	if s.Memory.Events != nil {
		out.MemoryEvents = &v2.MemoryEvents{}
		fill(out.MemoryEvents, s.Memory.Events, func(field string) string { return field })
	}
	for _, size := range slices.Sorted(maps.Keys(s.Hugetlb)) {
		h := s.Hugetlb[size]
		out.Hugetlb = append(out.Hugetlb, &v2.HugeTlbStat{Current: h.Usage, Max: h.Max, Failcnt: h.Failcnt, Pagesize: size})
	}
	return out
}

func subtract(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

func psi(in *cgroups.PSIStats) *v2.PSIStats {
	if in == nil {
		return nil
	}
	data := func(d cgroups.PSIData) *v2.PSIData {
		return &v2.PSIData{Avg10: d.Avg10, Avg60: d.Avg60, Avg300: d.Avg300, Total: d.Total}
	}
	return &v2.PSIStats{Some: data(in.Some), Full: data(in.Full)}
}

// ioUsage gathers the counters of each device.
func ioUsage(in *cgroup.BlkioStats) []*v2.IOEntry {
	type device struct{ major, minor uint64 }
	found := map[device]*v2.IOEntry{}
	var out []*v2.IOEntry
	at := func(e cgroup.BlkioEntry) *v2.IOEntry {
		d := device{e.Major, e.Minor}
		if found[d] == nil {
			found[d] = &v2.IOEntry{Major: e.Major, Minor: e.Minor}
			out = append(out, found[d])
		}
		return found[d]
	}
	for _, e := range in.IoServiceBytesRecursive {
		switch e.Op {
		case "Read":
			at(e).Rbytes = e.Value
		case "Write":
			at(e).Wbytes = e.Value
		}
	}
	for _, e := range in.IoServicedRecursive {
		switch e.Op {
		case "Read":
			at(e).Rios = e.Value
		case "Write":
			at(e).Wios = e.Value
		}
	}
	return out
}

// fill sets each number of m from the raw statistic that key names for it.
func fill(m proto.Message, raw map[string]uint64, key func(field string) string) {
	r := m.ProtoReflect()
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Kind() != protoreflect.Uint64Kind || f.IsList() {
			continue
		}
		if v, ok := raw[key(string(f.Name()))]; ok {
			r.Set(f, protoreflect.ValueOfUint64(v))
		}
	}
}
