package profiles

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// planLimits lowers the spec's limits to the profile's.
func (p *Profile) planLimits(in *specs.LinuxResources) *specs.LinuxResources {
	l := p.Limits
	if l == (Limits{}) {
		return in
	}
	out := &specs.LinuxResources{}
	if in != nil {
		*out = *in
	}
	if l.MemoryBytes > 0 {
		out.Memory = limitMemory(out.Memory, l.MemoryBytes)
	}
	if l.PIDs > 0 {
		pids := specs.LinuxPids{}
		if out.Pids != nil {
			pids = *out.Pids
		}
		if pids.Limit == nil || *pids.Limit < 0 || *pids.Limit > l.PIDs {
			pids.Limit = new(l.PIDs)
		}
		out.Pids = &pids
	}
	if l.CPUs > 0 {
		out.CPU = limitCPU(out.CPU, l.CPUs)
	}
	out.Unified = l.limitUnified(out.Unified)
	return out
}

// PlanUpdate returns the changes of a running container's limits within the profile's, and what was lowered. What the
// changes leave as it is stays so. quotaUsec and periodUsec are the CPU limit in force, 0 for none: of a quota and a period
// one may be changed alone. It is pure and leaves its input alone (TestAttack_LimitsByUpdate).
func (p *Profile) PlanUpdate(in *specs.LinuxResources, quotaUsec int64, periodUsec uint64) (*specs.LinuxResources, []Note) {
	l := p.Limits
	if in == nil || p.Unrestricted {
		return in, nil
	}
	out := *in
	var lowered []string
	if m := in.Memory; m != nil && l.MemoryBytes > 0 {
		next := *m
		for _, f := range []**int64{&next.Limit, &next.Swap, &next.Reservation} {
			if v := *f; v != nil && (*v < 0 || *v > l.MemoryBytes) {
				*f = new(l.MemoryBytes)
			}
		}
		if next != *m {
			out.Memory, lowered = &next, append(lowered, "memory")
		}
	}
	if pids := in.Pids; pids != nil && pids.Limit != nil && l.PIDs > 0 && (*pids.Limit < 0 || *pids.Limit > l.PIDs) {
		next := *pids
		next.Limit = new(l.PIDs)
		out.Pids, lowered = &next, append(lowered, "pids")
	}
	if c := in.CPU; c != nil && l.CPUs > 0 && (c.Quota != nil || c.Period != nil) {
		whole := *c
		if whole.Quota == nil {
			whole.Quota = &quotaUsec
		}
		if whole.Period == nil && periodUsec > 0 {
			whole.Period = &periodUsec
		}
		if next := limitCPU(&whole, l.CPUs); *next.Quota != *whole.Quota {
			out.CPU, lowered = next, append(lowered, "cpu")
		}
	}
	if out.Unified = l.limitUnified(in.Unified); !maps.Equal(out.Unified, in.Unified) {
		lowered = append(lowered, "unified")
	}
	var notes []Note
	for _, what := range lowered {
		notes = append(notes, Note{Rule: "limits", Text: fmt.Sprintf("linux.resources.%s lowered to what the profile %q allows", what, p.Name)})
	}
	return &out, notes
}

// limitUnified lowers what names a file of cgroup v2: it is written after the fields for the same, and would win. The kernel
// takes numbers in several spellings; what is no plain number counts as too much.
func (l *Limits) limitUnified(in map[string]string) map[string]string {
	if len(in) == 0 {
		return in
	}
	out := maps.Clone(in)
	for key, most := range map[string]int64{"memory.max": l.MemoryBytes, "pids.max": l.PIDs} {
		text, set := in[key]
		if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); set && most > 0 && (err != nil || n < 0 || n > most) {
			out[key] = strconv.FormatInt(most, 10)
		}
	}
	// Swap comes on top there, while the profile's limit is of memory and swap together.
	if text, set := in["memory.swap.max"]; set && l.MemoryBytes > 0 {
		rest := int64(0)
		if n, err := strconv.ParseInt(strings.TrimSpace(out["memory.max"]), 10, 64); err == nil && n < l.MemoryBytes {
			rest = l.MemoryBytes - n
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err != nil || n < 0 || n > rest {
			out["memory.swap.max"] = strconv.FormatInt(rest, 10)
		}
	}
	if text, set := in["cpu.max"]; set && l.CPUs > 0 {
		out["cpu.max"] = limitCPUMax(text, l.CPUs)
	}
	return out
}

// limitCPUMax lowers "QUOTA PERIOD", of which the second may be missing. Source: cgroup-v2.rst, cpu.max.
func limitCPUMax(text string, cpus float64) string {
	const defaultPeriodUsec = 100_000
	period := uint64(defaultPeriodUsec)
	fields := strings.Fields(text)
	if len(fields) > 1 {
		if n, err := strconv.ParseUint(fields[1], 10, 32); err == nil && n > 0 {
			period = n
		}
	}
	most := int64(cpus * float64(period))
	if len(fields) > 0 && len(fields) < 3 {
		if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil && n > 0 && n <= most {
			return strconv.FormatInt(n, 10) + " " + strconv.FormatUint(period, 10)
		}
	}
	return strconv.FormatInt(most, 10) + " " + strconv.FormatUint(period, 10)
}

// limitMemory lowers a limit, and what must not be above it.
func limitMemory(in *specs.LinuxMemory, maxBytes int64) *specs.LinuxMemory {
	m := specs.LinuxMemory{}
	if in != nil {
		m = *in
	}
	if m.Limit == nil || *m.Limit <= 0 || *m.Limit > maxBytes {
		m.Limit = new(maxBytes)
	}
	if m.Swap != nil && (*m.Swap < 0 || *m.Swap > maxBytes) {
		m.Swap = new(*m.Limit)
	}
	if m.Reservation != nil && *m.Reservation > *m.Limit {
		m.Reservation = new(*m.Limit)
	}
	return &m
}

// limitCPU lowers a quota; the spec's period is kept.
func limitCPU(in *specs.LinuxCPU, cpus float64) *specs.LinuxCPU {
	const defaultPeriodUsec = 100_000
	c := specs.LinuxCPU{}
	if in != nil {
		c = *in
	}
	period := uint64(defaultPeriodUsec)
	if c.Period != nil && *c.Period > 0 {
		period = *c.Period
	}
	quota := int64(cpus * float64(period))
	if c.Quota == nil || *c.Quota <= 0 || *c.Quota > quota {
		c.Quota, c.Period = &quota, &period
	}
	return &c
}
