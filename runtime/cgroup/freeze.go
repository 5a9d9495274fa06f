package cgroup

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
)

// ErrThawed says that somebody thawed the group while it was freezing: Thaw, Kill, or a manager of the host's.
var ErrThawed = errors.New("thawed meanwhile by another operation")

// Freeze stops every process of the group, sub-cgroups included, and returns when all stand still. If that can't be
// reached in some seconds it thaws again. Kill may be called meanwhile: then the error is ErrThawed, and it isn't tried
// again, since what thaws to kill must not meet a group that freezes once more.
func (g *Group) Freeze() error {
	if err := g.setFreezer(cgroups.Frozen); err != nil {
		// The library has no value for it. v1: "unexpected state THAWED while freezing"; v2: `... but was in "THAWED"`, or it
		// waits in vain for what nobody wants any more.
		if strings.Contains(err.Error(), string(cgroups.Thawed)) || g.unified() && !g.Frozen() {
			err = fmt.Errorf("%w: %w", ErrThawed, err)
		}
		_ = g.setFreezer(cgroups.Thawed)
		return fmt.Errorf("freeze cgroup %s: %w", g.Path("freezer"), err)
	}
	return nil
}

// Thaw lets the processes run again.
func (g *Group) Thaw() error {
	if err := g.setFreezer(cgroups.Thawed); err != nil {
		return fmt.Errorf("thaw cgroup %s: %w", g.Path("freezer"), err)
	}
	return nil
}

// setFreezer uses a manager of its own: the library's keeps the state among the resources, and waits while it holds its
// lock. Both drivers freeze through the file system.
func (g *Group) setFreezer(state cgroups.FreezerState) error {
	g.mu.Lock()
	dir, unified := g.path("freezer"), g.state.Unified
	g.mu.Unlock()
	if dir == "" {
		return fmt.Errorf("%w: no freezer", ErrUnsupported)
	}
	cg := &cgroups.Cgroup{Resources: &cgroups.Resources{}}
	if unified {
		m, err := fs2.NewManager(cg, dir)
		if err != nil {
			return err
		}
		return m.Freeze(state)
	}
	m, err := fs.NewManager(cg, map[string]string{"freezer": dir})
	if err != nil {
		return err
	}
	return m.Freeze(state)
}

func (g *Group) unified() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.Unified
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
