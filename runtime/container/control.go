package container

import (
	"context"
	"errors"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/runtime/cgroup"
)

func errNoCgroup() error {
	return fmt.Errorf("the container has no cgroup: an ordinary user has none without delegation "+
		"(systemd-run --user --scope -p Delegate=yes ...): %w", cgroup.ErrUnsupported)
}

func (c *Container) mustGroup() (*cgroup.Group, error) {
	g, err := c.cgroupGroup()
	if err == nil && g == nil {
		err = errNoCgroup()
	}
	return g, err
}

// Pause freezes every process of the container.
func (c *Container) Pause() error {
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status != StatusRunning && status != StatusCreated {
		return fmt.Errorf("container %q is %s: %w", c.id, status, ErrNotRunning)
	}
	g, err := c.mustGroup()
	if err != nil {
		return err
	}
	return c.unlessEnded(g.Freeze())
}

// unlessEnded puts in front of an error that the container has ended meanwhile, if it has: then what failed is what its
// end took away.
func (c *Container) unlessEnded(err error) error {
	if err == nil || errors.Is(err, ErrNotRunning) || c.initAlive() {
		return err
	}
	return fmt.Errorf("%w: container %q has ended meanwhile: %w", ErrNotRunning, c.id, err)
}

// Resume thaws the container.
func (c *Container) Resume() error {
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status != StatusPaused {
		return fmt.Errorf("container %q is %s: %w", c.id, status, ErrNotPaused)
	}
	g, err := c.mustGroup()
	if err != nil {
		return err
	}
	return c.unlessEnded(g.Thaw())
}

// Update changes limits while the container runs; fields that are nil stay as they are.
func (c *Container) Update(r *specs.LinuxResources) error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.unlock()
	if err := c.reload(); err != nil {
		return err
	}
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status == StatusStopped {
		return fmt.Errorf("update container %q: %w", c.id, ErrNotRunning)
	}
	d, err := c.details()
	if err != nil {
		return err
	}
	g, err := c.groupWithResources()
	if err != nil {
		return err
	}
	var quota int64
	var period uint64
	if now := g.State().Cgroup.Resources; now != nil {
		quota, period = now.CpuQuota, now.CpuPeriod
	}
	// Who may ask the engine for an update is not who chose the profile.
	bounded, notes := d.Policy.Profile.PlanUpdate(r, quota, period)
	for _, n := range notes {
		c.rt.opts.Warn(n.String())
	}
	if err := g.Set(bounded); err != nil {
		return err
	}
	state := g.State()
	d.Cgroup = &state
	if err := writeDetail(c.dir, d); err != nil {
		return err
	}
	c.state.Cgroup = cgroupPaths(&state)
	return writeState(c.dir, c.state)
}

// Stats measures the container.
func (c *Container) Stats() (*cgroup.Stats, error) {
	g, err := c.mustGroup()
	if err != nil {
		return nil, err
	}
	return g.Stats()
}

// OpenMeter opens what tells the container's use of memory, processors and processes; the caller closes it.
func (c *Container) OpenMeter() (*cgroup.Meter, error) {
	g, err := c.mustGroup()
	if err != nil {
		return nil, err
	}
	return g.OpenMeter()
}

// PIDs lists the container's processes, in the caller's pid namespace.
func (c *Container) PIDs() ([]int, error) {
	g, err := c.mustGroup()
	if err != nil {
		return nil, err
	}
	return g.PIDs(true)
}

// WatchOOM reports each time that the kernel ends a process of the container for want of memory; the channel is closed
// when the cgroup is gone or ctx ends.
func (c *Container) WatchOOM(ctx context.Context) (<-chan uint64, error) {
	g, err := c.mustGroup()
	if err != nil {
		return nil, err
	}
	return g.WatchOOM(ctx)
}

// OOMKills returns how many processes of the container the kernel has ended for want of memory.
func (c *Container) OOMKills() (uint64, error) {
	g, err := c.mustGroup()
	if err != nil {
		return 0, err
	}
	return g.OOMKillCount()
}
