package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/fs/safepath"
	"github.com/agentsafe/agentsafe/fs/thread"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
	"github.com/agentsafe/agentsafe/runtime/criu"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// restorePidFile is where CRIU writes the first process's pid.
const restorePidFile = "agentsafe-restored.pid"

// Restore makes a container of the images that Checkpoint has written. Its processes run when Restore returns; the first
// one is the caller's child. If it fails nothing is left behind. The caller closes the result.
//
// What the spec says of the file system, of namespaces and of cgroups holds for it as for a new container; ids,
// capabilities, limits and filters of its processes are those of the images.
func (r *Runtime) Restore(ctx context.Context, o *CreateOptions, images *criu.Options) (*Container, error) {
	c, err := r.claim(o.ID)
	if err != nil {
		return nil, err
	}
	cr := &creation{rt: r, o: o, c: c}
	cr.undo.push(func() {
		if err := c.removeState(); err != nil {
			r.opts.Warn(fmt.Sprintf("clean up after the failed restore (delete --force removes it): %v", err))
		}
	})
	defer cr.closeAll()
	for _, step := range []func(context.Context) error{
		cr.load, cr.judge, cr.restorable, cr.acquireCgroup, func(ctx context.Context) error { return cr.restore(ctx, images) },
	} {
		if err = step(ctx); err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			cr.undo.run()
			c.Close()
			return nil, fmt.Errorf("restore container %q: %w", o.ID, err)
		}
	}
	cr.undo.keep()
	c.unlock()
	return c, nil
}

// restorable refuses what CRIU would not make as the spec says.
func (cr *creation) restorable(context.Context) error {
	if err := refuseRules("restore", cr.policy); err != nil {
		return err
	}
	if h := cr.spec.Hooks; h != nil && len(h.CreateContainer)+len(h.StartContainer) > 0 {
		return fmt.Errorf("hooks.createContainer, hooks.startContainer: they run inside before the program does, which a restored one does already: %w", ErrNoCheckpoint)
	}
	if cr.spec.Linux.IntelRdt != nil {
		return fmt.Errorf("linux.intelRdt: %w", ErrNoCheckpoint)
	}
	return checkpointable(cr.spec)
}

// restore has CRIU make the processes, and takes them over.
func (cr *creation) restore(ctx context.Context, o *criu.Options) error {
	images, err := criu.OpenImages(o.Images)
	if err != nil {
		return err
	}
	defer images.Close()
	plan := &criu.Restore{Options: *o, Root: cr.root.Path, PidFile: restorePidFile}
	plan.Binds = cr.restoredBinds()
	meta, err := criu.ReadMeta(images)
	if err != nil {
		return err
	}
	plan.Streams, plan.EmptyNetwork = meta.Streams, meta.EmptyNetwork || plan.EmptyNetwork
	start, err := cr.restoredFiles(plan)
	if err != nil {
		return err
	}
	group, err := cr.takeGroup()
	if err != nil {
		return err
	}
	if group == nil {
		return fmt.Errorf("without a cgroup %w", ErrNoCheckpoint)
	}
	if err := cr.placeRestore(plan, group, start); err != nil {
		return err
	}
	if hasEarlyHooks(cr.spec.Hooks) {
		start.Namespaces = func(pid int) error { return cr.restoreHooks(ctx, pid) }
	}
	pidFile := filepath.Join(cmp.Or(o.Work, o.Images), restorePidFile)
	if err := os.Remove(pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove an earlier restore's pid file: %w", err)
	}
	cr.undo.push(func() { group.Kill(context.WithoutCancel(ctx)) }) //nolint:errcheck // Destroy tells
	thread.Run(func() {
		if err = cr.mountRoot(); err == nil {
			err = criu.Run(ctx, o, criu.PlanRestore(plan), *start)
		}
	})
	if err != nil {
		return err
	}
	return cr.takeOver(pidFile, group)
}

// restoreHooks runs the hooks that engines set up the network by, when there are namespaces.
func (cr *creation) restoreHooks(ctx context.Context, pid int) error {
	cr.c.state.InitPID = pid
	state := cr.c.ociState(StatusCreating)
	if err := runHooks(ctx, "prestart", cr.spec.Hooks.Prestart, state); err != nil { //nolint:staticcheck // Docker's network needs it
		return err
	}
	return runHooks(ctx, "createRuntime", cr.spec.Hooks.CreateRuntime, state)
}

// restoredBinds are the sources of the mounts that the images leave out, by where they were: symlinks of the image are
// followed as init does.
func (cr *creation) restoredBinds() []criu.Bind {
	out := outsideBinds(cr.spec)
	for i := range out {
		f, err := safepath.OpenInRoot(cr.root.Tree, out[i].Destination, unix.O_PATH)
		if err != nil {
			continue // below a mount of the container's own
		}
		// Relative to the detached tree, whose root is the container's.
		if where, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd()))); err == nil && strings.HasPrefix(where, "/") {
			out[i].Destination = where
		}
		f.Close()
		if !filepath.IsAbs(out[i].Source) {
			out[i].Source = filepath.Join(cr.bundle.Name(), out[i].Source)
		}
	}
	return out
}

// restoredFiles are the descriptors that the plan speaks of.
func (cr *creation) restoredFiles(plan *criu.Restore) (*criu.Start, error) {
	start := &criu.Start{}
	if f := cr.ns.joined[specs.NetworkNamespace]; f != nil {
		link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
		if err != nil {
			return nil, fmt.Errorf("look at network namespace: %w", err)
		}
		plan.Network = link
		start.Files = append(start.Files, f)
	}
	streams := []*os.File{cr.o.Stdin, cr.o.Stdout, cr.o.Stderr}
	for _, i := range plan.Inherited() {
		f := streams[i]
		if f == nil {
			null, err := os.OpenFile(os.DevNull, os.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, err
			}
			cr.opened = append(cr.opened, null)
			f = null
		}
		start.Files = append(start.Files, f)
	}
	return start, nil
}

// placeRestore puts CRIU where the container's processes shall be.
func (cr *creation) placeRestore(plan *criu.Restore, group *cgroup.Group, start *criu.Start) error {
	state := group.State()
	plan.Unified = state.Unified
	if !state.Unified {
		plan.CgroupRoots = map[string]string{}
		for name, dir := range state.Paths {
			// /sys/fs/cgroup/memory/a/b is /a/b to CRIU.
			if rest, found := strings.CutPrefix(dir, "/sys/fs/cgroup/"); found {
				_, below, _ := strings.Cut(rest, "/")
				plan.CgroupRoots[name] = "/" + below
			}
		}
		return nil
	}
	dir, err := group.Dir()
	if err != nil {
		return fmt.Errorf("restore into a cgroup that systemd makes: %w", err)
	}
	cr.opened = append(cr.opened, dir)
	start.Attr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if cr.ns.cgroupNS {
		// Of the cgroup that it is born into: what it makes has that as its root.
		start.Attr.Unshareflags = unix.CLONE_NEWCGROUP
	}
	return nil
}

// mountRoot makes the root file system a mount of its own, which CRIU wants, in a mount namespace that only this thread
// and what it starts are in.
func (cr *creation) mountRoot() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("create mount namespace: %w", err)
	}
	// Not private: CRIU gives bind mounts the propagation that they had from their sources, which must have it.
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_SLAVE}); err != nil {
		return fmt.Errorf("set propagation: %w", err)
	}
	at, err := os.OpenFile(cr.root.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open root file system: %w", err)
	}
	defer at.Close()
	err = unix.MoveMount(int(cr.root.Tree.Fd()), "", int(at.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("mount root file system: %w", err)
	}
	return mountNull()
}

// mountNull makes the null device, which CRIU binds over masked files, one through which nothing of the host's node can be
// changed: CRIU forgets the read-only flag of all but the first of several binds (TestCheckpoint).
func mountNull() error {
	null, err := rootfs.OpenDevice(os.DevNull, 1, 3)
	if err != nil {
		return err
	}
	defer null.Close()
	at, err := os.OpenFile(os.DevNull, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open null device: %w", err)
	}
	defer at.Close()
	if err := unix.MoveMount(int(null.Fd()), "", int(at.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount null device: %w", err)
	}
	return nil
}

// takeOver makes the restored process the container's first one. That it is where it must be is looked at: CRIU has been
// told in other words than the kernel's.
func (cr *creation) takeOver(pidFile string, group *cgroup.Group) error {
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return fmt.Errorf("read pid of the restored process: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("read pid of the restored process: %w", err)
	}
	kid, err := initproc.Adopt(pid)
	if err != nil {
		return err
	}
	cr.c.child = kid
	cr.undo.push(cr.reap)
	inside, err := group.PIDs(true)
	if err != nil {
		return err
	}
	if !slices.Contains(inside, pid) {
		return fmt.Errorf("the restored process %d is not in the container's cgroup: %w", pid, unix.EXDEV)
	}
	for _, k := range namespaceKinds {
		if !cr.ns.own[k.kind] {
			continue
		}
		its, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/" + k.file)
		if err != nil {
			return fmt.Errorf("look at the restored process: %w", err)
		}
		if ours, err := os.Readlink("/proc/self/ns/" + k.file); err != nil || its == ours {
			return fmt.Errorf("the restored process %d has no %s namespace of its own: %w", pid, k.kind, cmp.Or(err, error(unix.EXDEV)))
		}
	}
	s := cr.c.state
	if s.InitStart, _, err = startTime(pid); err != nil {
		return fmt.Errorf("read start time of the restored process: %w", err)
	}
	s.InitPID = pid
	state := group.State()
	s.Cgroup = cgroupPaths(&state)
	cr.c.detail.Cgroup = &state
	if err := writeState(cr.c.dir, s); err != nil {
		return err
	}
	if err := writeDetail(cr.c.dir, cr.c.detail); err != nil {
		return err
	}
	return writePidFile(cr.o.PidFile, pid)
}
