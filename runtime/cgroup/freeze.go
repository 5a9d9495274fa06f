package cgroup

import (
	"fmt"
	"strings"

	"github.com/opencontainers/cgroups"
)

// Freeze stops every process of the group, sub-cgroups included, and returns when all stand still. If that can't be
// reached it thaws again.
func (g *Group) Freeze() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.manager.Freeze(cgroups.Frozen); err != nil {
		_ = g.manager.Freeze(cgroups.Thawed)
		return fmt.Errorf("freeze cgroup %s: %w", g.mainDir(), err)
	}
	return nil
}

// Thaw lets the processes run again.
func (g *Group) Thaw() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.manager.Freeze(cgroups.Thawed); err != nil {
		return fmt.Errorf("thaw cgroup %s: %w", g.mainDir(), err)
	}
	return nil
}

// Frozen says whether the group itself was frozen; an ancestor's freezing is not this container's pause. It never waits:
// the library's question does while a freeze is under way, and a task in uninterruptible sleep can make that for ever.
func (g *Group) Frozen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.frozen()
}

func (g *Group) frozen() bool {
	dir, file := g.path("freezer"), "freezer.self_freezing"
	if g.state.Unified {
		file = "cgroup.freeze"
	}
	if dir == "" {
		return false
	}
	text, err := cgroups.ReadFile(dir, file)
	return err == nil && strings.TrimSpace(text) == "1"
}
