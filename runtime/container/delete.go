package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Delete is Runtime.Delete for a container that this process has created and still holds.
func (c *Container) Delete(ctx context.Context) error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.unlock()
	return c.delete(ctx, true)
}

// Delete removes a container that has stopped, or that was created and never started. With force it first ends one that
// runs, cleans up whatever a crash left, and a container that does not exist is no error.
func (r *Runtime) Delete(ctx context.Context, id string, force bool) error {
	c, err := r.openDir(id)
	if err != nil {
		if force && errors.Is(err, ErrNotExist) {
			return nil
		}
		return err
	}
	defer c.Close()
	if err := c.lock(); err != nil {
		if force && errors.Is(err, ErrNotExist) {
			return nil
		}
		return err
	}
	err = c.reload()
	switch {
	case err == nil:
		return c.delete(ctx, force)
	case force:
		r.opts.Warn(fmt.Sprintf("remove container %q without its state: %v", id, err))
		return c.deleteDamaged(ctx)
	default:
		return err
	}
}

// deleteDamaged removes a container whose state.json is damaged, missing or of another version. detail.json tells where
// its cgroups are, and so which processes are its; without that there is nothing to go by but the directory itself.
func (c *Container) deleteDamaged(ctx context.Context) error {
	d, err := c.details()
	if err != nil || d.Cgroup == nil {
		return c.removeState()
	}
	c.state = &State{
		Cgroup:   cgroupPaths(d.Cgroup),
		HasHooks: d.Hooks != nil && len(d.Hooks.Poststop) > 0,
	}
	return c.delete(ctx, true)
}

func (c *Container) delete(ctx context.Context, force bool) error {
	status, err := c.Status()
	if err != nil && !force {
		return err
	}
	if status != StatusStopped && status != StatusCreated && !force {
		return fmt.Errorf("cannot delete container %q that is not stopped: %s", c.id, status)
	}
	if err := c.killAll(ctx); err != nil {
		return err
	}
	c.closeSupervisor(ctx)
	c.leavePod()
	if err := c.destroyCgroup(ctx); err != nil {
		return err
	}
	if c.state.RDT != nil {
		if err := c.state.RDT.Remove(); err != nil {
			return fmt.Errorf("remove class of container %q: %w", c.id, err)
		}
	}
	if err := c.removeHostMounts(); err != nil {
		return err
	}
	c.endLayers()
	if c.state.HasHooks {
		c.runPoststop(ctx)
	}
	return c.removeState()
}

// runPoststop runs the poststop hooks. Their failures are logged and nothing more.
// Source: runtime-spec 1.3.0, runtime.md "Lifecycle", step 13.
func (c *Container) runPoststop(ctx context.Context) {
	d, err := c.details()
	if err != nil {
		c.rt.opts.Warn(fmt.Sprintf("hooks.poststop: %v", err))
		return
	}
	for i := range d.Hooks.Poststop {
		if err := runHook(ctx, &d.Hooks.Poststop[i], c.ociState(StatusStopped)); err != nil {
			c.rt.opts.Warn(fmt.Sprintf("hooks.poststop[%d] (%s): %v", i, d.Hooks.Poststop[i].Path, err))
		}
	}
}

// destroyCgroup removes the cgroups. An exec takes no lock: one that had looked before the first process was killed may
// join them after everything in them was, and a pause may have frozen it there, so what is found in them is killed again.
func (c *Container) destroyCgroup(ctx context.Context) error {
	g, err := c.cgroupGroup()
	if err != nil || g == nil {
		return err
	}
	const rounds = 5 // Destroy waits a second in each
	for range rounds {
		if err = g.Destroy(); !errors.Is(err, unix.EBUSY) {
			break
		}
		if kerr := g.Kill(ctx); kerr != nil {
			return fmt.Errorf("kill what has joined container %q late: %w", c.id, kerr)
		}
	}
	if err != nil {
		return fmt.Errorf("remove cgroup of container %q: %w", c.id, err)
	}
	return nil
}

// removeState removes the state directory, by handle; its one sub-directory is that of the policy in force.
func (c *Container) removeState() error {
	if err := c.removeInForce(); err != nil {
		return err
	}
	for _, name := range []string{startSocket, detailFile, stateFile} {
		if err := unix.Unlinkat(int(c.dir.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove %s of container %q: %w", name, c.id, err)
		}
	}
	err := unix.Unlinkat(int(c.rt.root.Fd()), c.id, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) {
		if err = c.emptyState(); err == nil {
			err = unix.Unlinkat(int(c.rt.root.Fd()), c.id, unix.AT_REMOVEDIR)
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove state of container %q: %w", c.id, err)
	}
	return nil
}

func (c *Container) emptyState() error {
	fd, err := unix.Openat(int(c.dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), c.id)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, name := range names {
		if err := unix.Unlinkat(int(c.dir.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}
