package cgroup

import (
	"maps"
	"math"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// resourcePlan copies the fields that an OCI configuration sets over out, which may hold earlier values (an update), and
// checks the result. A list replaces the earlier one as a whole; maps are merged.
type resourcePlan struct {
	host  *Host
	out   *cgroups.Resources
	needs []need
}

// planResources merges in into out and returns the controllers that it needs. Device rules are planned apart: an update
// never changes them.
func planResources(in *specs.LinuxResources, host *Host, out *cgroups.Resources) ([]need, error) {
	if in == nil {
		return nil, nil
	}
	p := &resourcePlan{host: host, out: out}
	for _, step := range []func(*specs.LinuxResources) error{
		p.memory, p.cpu, p.cpuLimits, p.cpuset, p.pids, p.blockIO, p.hugetlb, p.network, p.rdma, p.unified,
	} {
		if err := step(in); err != nil {
			return nil, err
		}
	}
	return p.needs, nil
}

// need records that field requires controller, and fails if the host hasn't got it.
func (p *resourcePlan) need(controller, field string) error {
	if !p.host.has(controller) {
		what := "is not mounted"
		if p.host.Unified {
			what = "is not available"
		}
		if p.host.rootless {
			what = "is not delegated to this user (systemd-run --user --scope -p Delegate=yes ..., or run as root)"
		}
		return unsupportedField(field, "controller %s %s", unifiedName(controller), what)
	}
	p.needs = append(p.needs, need{controller, field})
	return nil
}

// Memory: bytes; 0 is unset, -1 unlimited. Source: runtime-spec 1.3.0, config-linux.md, Memory. Kernel memory limits are
// ignored: the kernel dropped them in 5.16 (runtime-spec: "may be ignored by runtimes").
func (p *resourcePlan) memory(in *specs.LinuxResources) error {
	m := in.Memory
	if m == nil {
		return nil
	}
	const f = "linux.resources.memory."
	setNumber(&p.out.Memory, m.Limit)
	setNumber(&p.out.MemoryReservation, m.Reservation)
	setNumber(&p.out.MemorySwap, m.Swap)
	set(&p.out.OomKillDisable, m.DisableOOMKiller)
	set(&p.out.MemoryCheckBeforeUpdate, m.CheckBeforeUpdate)
	if m.Swappiness != nil {
		p.out.MemorySwappiness = m.Swappiness
	}
	limit, swap := p.out.Memory, p.out.MemorySwap
	for _, v := range []struct {
		name  string
		value int64
	}{{"limit", limit}, {"reservation", p.out.MemoryReservation}, {"swap", swap}} {
		if v.value < -1 {
			return badField(f+v.name, "%d is neither a size nor -1", v.value)
		}
		if v.value > 0 && v.value < 4096 {
			return badField(f+v.name, "%d bytes is less than a page", v.value)
		}
		if v.value != 0 {
			if err := p.need("memory", f+v.name); err != nil {
				return err
			}
		}
	}
	if swap > 0 && limit <= 0 {
		return badField(f+"swap", "memory and swap together are limited to %d, but memory is not limited", swap)
	}
	if swap > 0 && swap < limit {
		return badField(f+"swap", "memory and swap together (%d) are below the memory limit (%d)", swap, limit)
	}
	if s := p.out.MemorySwappiness; s != nil && *s > 100 && *s != math.MaxUint64 {
		return badField(f+"swappiness", "%d is above 100", *s)
	}
	return nil
}

func (p *resourcePlan) cpu(in *specs.LinuxResources) error {
	c := in.CPU
	if c == nil {
		return nil
	}
	const f = "linux.resources.cpu."
	if c.Idle == nil {
		setNumber(&p.out.CpuShares, c.Shares)
	} else {
		set(&p.out.CpuShares, c.Shares) // an idle cgroup takes none: 0 clears them
	}
	setNumber(&p.out.CpuQuota, c.Quota)
	setNumber(&p.out.CpuPeriod, c.Period)
	setNumber(&p.out.CpuRtRuntime, c.RealtimeRuntime)
	setNumber(&p.out.CpuRtPeriod, c.RealtimePeriod)
	if c.Burst != nil {
		p.out.CpuBurst = c.Burst
	}
	if c.Idle != nil {
		p.out.CPUIdle = c.Idle
	}
	if p.out.CpuQuota < 0 {
		p.out.CpuQuota = -1
	}
	if c.Shares != nil {
		p.out.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(p.out.CpuShares)
	}
	if p.host.Unified && (p.out.CpuRtRuntime != 0 || p.out.CpuRtPeriod != 0) {
		return unsupportedField(f+"realtimeRuntime", "cgroup v2 has no realtime bandwidth")
	}
	for _, v := range []struct {
		name string
		used bool
	}{
		{"shares", p.out.CpuShares != 0},
		{"quota", p.out.CpuQuota != 0},
		{"period", p.out.CpuPeriod != 0},
		{"burst", p.out.CpuBurst != nil},
		{"idle", p.out.CPUIdle != nil},
		{"realtimeRuntime", p.out.CpuRtRuntime != 0},
		{"realtimePeriod", p.out.CpuRtPeriod != 0},
	} {
		if !v.used {
			continue
		}
		if err := p.need("cpu", f+v.name); err != nil {
			return err
		}
	}
	return nil
}

// cpuLimits checks ranges. Source: Linux kernel/sched/core.c, tg_set_cfs_bandwidth and sched_group_set_shares.
func (p *resourcePlan) cpuLimits(in *specs.LinuxResources) error {
	if in.CPU == nil {
		return nil
	}
	const (
		f           = "linux.resources.cpu."
		minQuotaUS  = 1000
		maxQuotaUS  = 1<<44 - 1
		minPeriodUS = 1000
		maxPeriodUS = 1000000
	)
	r := p.out
	// v2 clamps when it converts to a weight, v1 would silently write another value.
	if s := r.CpuShares; !p.host.Unified && s != 0 && (s < 2 || s > 262144) {
		return badField(f+"shares", "%d is not in 2..262144", s)
	}
	if q := r.CpuQuota; q > 0 && (q < minQuotaUS || q > maxQuotaUS) {
		return badField(f+"quota", "%d us is not in %d..%d", q, minQuotaUS, int64(maxQuotaUS))
	}
	if t := r.CpuPeriod; t != 0 && (t < minPeriodUS || t > maxPeriodUS) {
		return badField(f+"period", "%d us is not in %d..%d", t, minPeriodUS, maxPeriodUS)
	}
	if b := r.CpuBurst; b != nil && *b > maxQuotaUS {
		return badField(f+"burst", "%d us is above %d", *b, int64(maxQuotaUS))
	}
	if b := r.CpuBurst; b != nil && r.CpuQuota > 0 && *b > uint64(r.CpuQuota) {
		return badField(f+"burst", "%d us is above the quota of %d us", *b, r.CpuQuota)
	}
	if i := r.CPUIdle; i != nil && *i != 0 && *i != 1 {
		return badField(f+"idle", "%d is neither 0 nor 1", *i)
	}
	if r.CpuRtRuntime < -1 {
		return badField(f+"realtimeRuntime", "%d is neither a time nor -1", r.CpuRtRuntime)
	}
	if r.CpuRtPeriod > math.MaxInt32 {
		return badField(f+"realtimePeriod", "%d us is above %d", r.CpuRtPeriod, math.MaxInt32)
	}
	return nil
}

func (p *resourcePlan) cpuset(in *specs.LinuxResources) error {
	if in.CPU == nil {
		return nil
	}
	for _, v := range []struct {
		field string
		list  string
		to    *string
	}{
		{"linux.resources.cpu.cpus", in.CPU.Cpus, &p.out.CpusetCpus},
		{"linux.resources.cpu.mems", in.CPU.Mems, &p.out.CpusetMems},
	} {
		if v.list == "" {
			continue
		}
		if !isCPUList(v.list) {
			return badField(v.field, "%q is no list of numbers and ranges", v.list)
		}
		if err := p.need("cpuset", v.field); err != nil {
			return err
		}
		*v.to = v.list
	}
	return nil
}

// isCPUList accepts "0-3,7". Source: cpuset(7), List format; strides are not part of it.
func isCPUList(s string) bool {
	if len(s) > 4000 {
		return false
	}
	for part := range strings.SplitSeq(s, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
		first, err := strconv.ParseUint(from, 10, 16)
		if err != nil {
			return false
		}
		if last, err := strconv.ParseUint(to, 10, 16); ranged && (err != nil || last < first) {
			return false
		}
	}
	return true
}

// Pids: since runtime-spec 1.3.0 0 is a limit; the library writes 1 for it, which is the same for a container that has a
// process. -1 is no limit. The upper bound is the kernel's PID_MAX_LIMIT.
func (p *resourcePlan) pids(in *specs.LinuxResources) error {
	const field, maxPIDs = "linux.resources.pids.limit", 4194304
	if in.Pids == nil || in.Pids.Limit == nil {
		return nil
	}
	limit := *in.Pids.Limit
	if limit < -1 {
		return badField(field, "%d is neither a number of processes nor -1", limit)
	}
	if limit > maxPIDs {
		return badField(field, "%d is above %d, the kernel's maximum", limit, maxPIDs)
	}
	p.out.PidsLimit = &limit
	return p.need("pids", field)
}

func (p *resourcePlan) blockIO(in *specs.LinuxResources) error {
	b := in.BlockIO
	if b == nil {
		return nil
	}
	const f = "linux.resources.blockIO."
	setNumber(&p.out.BlkioWeight, b.Weight)
	setNumber(&p.out.BlkioLeafWeight, b.LeafWeight)
	used := p.out.BlkioWeight != 0 || p.out.BlkioLeafWeight != 0
	if len(b.WeightDevice) > 0 {
		p.out.BlkioWeightDevice = nil
	}
	for i, d := range b.WeightDevice {
		field := f + "weightDevice[" + strconv.Itoa(i) + "]"
		if err := checkDeviceNumber(field, d.Major, d.Minor); err != nil {
			return err
		}
		var weight, leaf uint16
		set(&weight, d.Weight)
		set(&leaf, d.LeafWeight)
		if err := checkWeights(field+".", weight, leaf); err != nil {
			return err
		}
		p.out.BlkioWeightDevice = append(p.out.BlkioWeightDevice, cgroups.NewWeightDevice(d.Major, d.Minor, weight, leaf))
		used = true
	}
	for _, t := range []struct {
		name string
		in   []specs.LinuxThrottleDevice
		out  *[]*cgroups.ThrottleDevice
	}{
		{"throttleReadBpsDevice", b.ThrottleReadBpsDevice, &p.out.BlkioThrottleReadBpsDevice},
		{"throttleWriteBpsDevice", b.ThrottleWriteBpsDevice, &p.out.BlkioThrottleWriteBpsDevice},
		{"throttleReadIOPSDevice", b.ThrottleReadIOPSDevice, &p.out.BlkioThrottleReadIOPSDevice},
		{"throttleWriteIOPSDevice", b.ThrottleWriteIOPSDevice, &p.out.BlkioThrottleWriteIOPSDevice},
	} {
		if len(t.in) > 0 {
			*t.out = nil
		}
		for i, d := range t.in {
			if err := checkDeviceNumber(f+t.name+"["+strconv.Itoa(i)+"]", d.Major, d.Minor); err != nil {
				return err
			}
			*t.out = append(*t.out, cgroups.NewThrottleDevice(d.Major, d.Minor, d.Rate))
			used = true
		}
	}
	if err := checkWeights(f, p.out.BlkioWeight, p.out.BlkioLeafWeight); err != nil {
		return err
	}
	if !used {
		return nil
	}
	return p.need("blkio", "linux.resources.blockIO")
}

func checkWeights(prefix string, weight, leaf uint16) error {
	if weight != 0 && (weight < 10 || weight > 1000) {
		return badField(prefix+"weight", "%d is not in 10..1000", weight)
	}
	if leaf != 0 && (leaf < 10 || leaf > 1000) {
		return badField(prefix+"leafWeight", "%d is not in 10..1000", leaf)
	}
	return nil
}

func checkDeviceNumber(field string, major, minor int64) error {
	if major < 0 || major > math.MaxUint32 || minor < 0 || minor > math.MaxUint32 {
		return badField(field, "%d:%d is no device number", major, minor)
	}
	return nil
}

func (p *resourcePlan) hugetlb(in *specs.LinuxResources) error {
	if len(in.HugepageLimits) > 0 {
		p.out.HugetlbLimit = nil
	}
	for i, h := range in.HugepageLimits {
		field := "linux.resources.hugepageLimits[" + strconv.Itoa(i) + "]"
		number, unit := "", ""
		if n := len(h.Pagesize) - 2; n > 0 {
			number, unit = h.Pagesize[:n], h.Pagesize[n:]
		}
		if v, err := strconv.ParseUint(number, 10, 32); err != nil || v == 0 || number[0] == '0' ||
			(unit != "KB" && unit != "MB" && unit != "GB") {
			return badField(field+".pageSize", "%q is not a size like 64KB, 2MB or 1GB", h.Pagesize)
		}
		if err := p.need("hugetlb", field); err != nil {
			return err
		}
		p.out.HugetlbLimit = append(p.out.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: h.Pagesize, Limit: h.Limit})
	}
	return nil
}

func (p *resourcePlan) network(in *specs.LinuxResources) error {
	n := in.Network
	if n == nil {
		return nil
	}
	const f = "linux.resources.network."
	if n.ClassID != nil && *n.ClassID != 0 {
		if err := p.need("net_cls", f+"classID"); err != nil {
			return err
		}
		p.out.NetClsClassid = *n.ClassID
	}
	if len(n.Priorities) > 0 {
		p.out.NetPrioIfpriomap = nil
	}
	for i, prio := range n.Priorities {
		field := f + "priorities[" + strconv.Itoa(i) + "]"
		if prio.Name == "" || len(prio.Name) > 15 || strings.ContainsAny(prio.Name, "/ \t\n") {
			return badField(field+".name", "%q is no interface name", prio.Name)
		}
		if err := p.need("net_prio", field); err != nil {
			return err
		}
		p.out.NetPrioIfpriomap = append(p.out.NetPrioIfpriomap,
			&cgroups.IfPrioMap{Interface: prio.Name, Priority: int64(prio.Priority)})
	}
	return nil
}

func (p *resourcePlan) rdma(in *specs.LinuxResources) error {
	for device, limits := range in.Rdma {
		field := "linux.resources.rdma." + device
		if device == "" || strings.ContainsAny(device, "/ \t\n") {
			return badField(field, "%q is no device name", device)
		}
		if err := p.need("rdma", field); err != nil {
			return err
		}
		if p.out.Rdma == nil {
			p.out.Rdma = map[string]cgroups.LinuxRdma{}
		}
		p.out.Rdma[device] = cgroups.LinuxRdma{HcaHandles: limits.HcaHandles, HcaObjects: limits.HcaObjects}
	}
	return nil
}

// Unified: file names of cgroup v2 and what to write. Source: runtime-spec 1.3.0, config-linux.md, Unified. Files that
// would move processes or hand the cgroup's control over are no resources.
func (p *resourcePlan) unified(in *specs.LinuxResources) error {
	const f = "linux.resources.unified"
	if len(in.Unified) == 0 {
		return nil
	}
	if !p.host.Unified {
		return unsupportedField(f, "this host has cgroup v1")
	}
	for name := range in.Unified {
		controller, _, ok := strings.Cut(name, ".")
		if !ok || controller == "" || strings.ContainsAny(name, "/\x00\n") {
			return badField(f, "%q is not of the form controller.file", name)
		}
		if controller == "cgroup" {
			switch name {
			case "cgroup.max.descendants", "cgroup.max.depth", "cgroup.pressure":
				continue
			}
			return badField(f, "%q is no resource", name)
		}
		if err := p.need(controller, f+"."+name); err != nil {
			return err
		}
	}
	if p.out.Unified == nil {
		p.out.Unified = map[string]string{}
	}
	maps.Copy(p.out.Unified, in.Unified)
	return nil
}

// set assigns *from if there is one.
func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// setNumber is set for limits of which 0 is unset. An update of Docker names all of them, with 0 for those that stay.
func setNumber[T int64 | uint64 | uint16](to, from *T) {
	if from != nil && *from != 0 {
		*to = *from
	}
}
