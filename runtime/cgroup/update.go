package cgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Set changes the limits that r sets and leaves the others (runc update). Device rules in r are ignored. If the kernel
// refuses one, the former limits are written again and nothing has changed. Afterwards State has the new resources.
//
// memory.checkBeforeUpdate refuses a limit below what is in use, on v1 and v2: v1 would otherwise reclaim, v2 would start
// killing.
func (g *Group) Set(r *specs.LinuxResources) error {
	host, err := ReadHost()
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	old := *g.state.Cgroup.Resources
	next := cloneResources(&old)
	if r != nil && r.Memory != nil && r.Memory.CheckBeforeUpdate == nil {
		next.MemoryCheckBeforeUpdate = false // asked for by each update
	}
	needs, err := planResources(r, &host, next)
	if err != nil {
		return err
	}
	if g.state.Unified {
		has, err := os.ReadFile(g.path("") + "/cgroup.controllers")
		if err != nil {
			return fmt.Errorf("read cgroup controllers: %w", err)
		}
		if err := checkDelegated(needs, g.path(""), splitFields(has)); err != nil {
			return err
		}
	}
	if err := g.checkMemory(next); err != nil {
		return err
	}
	if next.CpusetCpus != "" || next.CpusetMems != "" {
		if err := g.joinLate("cpuset", next); err != nil {
			return err
		}
	}
	next.SkipDevices = true
	if err := g.manager.Set(next); err != nil {
		_ = g.manager.Set(former(&old, next))
		g.state.Cgroup.Resources = &old
		return g.explain(fmt.Errorf("update limits: %w", err))
	}
	g.state.Cgroup.Resources = next
	return nil
}

// cloneResources copies what planResources changes in place: it replaces lists and pointers, and writes into maps.
func cloneResources(r *cgroups.Resources) *cgroups.Resources {
	next := *r
	next.Unified, next.Rdma = maps.Clone(r.Unified), maps.Clone(r.Rdma)
	return &next
}

// former returns what undoes a half-written update: the old limits, and where there was none, the kernel's default
// spelled out, because the library writes nothing for an unset field.
func former(old, next *cgroups.Resources) *cgroups.Resources {
	undo := *old
	undo.SkipDevices, undo.MemoryCheckBeforeUpdate = true, false
	unlimited := int64(-1)
	for _, f := range []struct{ undo, next *int64 }{
		{&undo.Memory, &next.Memory},
		{&undo.MemorySwap, &next.MemorySwap},
		{&undo.MemoryReservation, &next.MemoryReservation},
		{&undo.CpuQuota, &next.CpuQuota},
	} {
		if *f.undo == 0 && *f.next != 0 {
			*f.undo = unlimited
		}
	}
	if undo.PidsLimit == nil && next.PidsLimit != nil {
		undo.PidsLimit = &unlimited
	}
	if undo.CpuShares == 0 && next.CpuShares != 0 {
		undo.CpuShares, undo.CpuWeight = 1024, 100
	}
	if undo.CpuPeriod == 0 && next.CpuPeriod != 0 {
		undo.CpuPeriod = 100000
	}
	return &undo
}

// checkMemory is memory.checkBeforeUpdate. Source: runtime-spec 1.3.0, config-linux.md, Memory. The library has it for v2
// only.
func (g *Group) checkMemory(r *cgroups.Resources) error {
	dir, file := g.path("memory"), "memory.usage_in_bytes"
	if g.state.Unified {
		file = "memory.current"
	}
	if !r.MemoryCheckBeforeUpdate || r.Memory <= 0 || dir == "" {
		return nil
	}
	usage, err := readUint(dir, file)
	if err != nil {
		return fmt.Errorf("read memory usage: %w", err)
	}
	if uint64(r.Memory) <= usage {
		return badField("linux.resources.memory.limit", "%d is not above the %d in use (checkBeforeUpdate)", r.Memory, usage)
	}
	return nil
}

// joinLate creates the v1 cgroup of a controller that Create left out, and moves the container's processes into it. They
// may fork meanwhile, so it goes on until a round finds nobody outside.
func (g *Group) joinLate(controller string, r *cgroups.Resources) error {
	dir, ok := g.state.Late[controller]
	if !ok {
		return nil
	}
	made := &madeDirs{}
	if err := g.moveAll(dir, made, r); err != nil {
		made.remove()
		return g.explain(fmt.Errorf("join %s cgroup: %w", controller, err))
	}
	g.state.Paths[controller] = dir
	delete(g.state.Late, controller)
	return g.setManager()
}

func (g *Group) moveAll(dir string, made *madeDirs, r *cgroups.Resources) error {
	if _, err := made.add(dir); err != nil {
		return err
	}
	if err := fillCPUSet(dir, r); err != nil {
		return err
	}
	for range 1000 {
		inside, err := readPIDs(dir, true)
		if err != nil {
			return err
		}
		there := make(map[int]bool, len(inside))
		for _, pid := range inside {
			there[pid] = true
		}
		all, err := g.pids(true)
		if err != nil {
			return err
		}
		moved := false
		for _, pid := range all {
			if there[pid] {
				continue
			}
			if err := placeProcess(dir, pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("move process %d to %s: %w", pid, dir, err)
			}
			moved = true
		}
		if !moved {
			return nil
		}
	}
	return fmt.Errorf("move processes to %s: they fork too fast: %w", dir, unix.EAGAIN)
}
