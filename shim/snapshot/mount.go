package snapshot

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/thread"
)

// Activate mounts a snapshot on the directory rootfs, in order. If one mount fails nothing stays mounted. newNS is called
// for mounts whose owners are mapped.
func Activate(mounts []Mount, rootfs string, newNS NewUserNamespace) error {
	plans := make([]Plan, len(mounts))
	for i, m := range mounts {
		var err error
		if plans[i], err = PlanMount(m, rootfs); err != nil {
			return fmt.Errorf("rootfs mount %d: %w", i, err)
		}
	}
	for i := range plans {
		if err := plans[i].apply(newNS); err != nil {
			return errors.Join(fmt.Errorf("rootfs mount %d (%s of %q): %w", i, plans[i].Type, plans[i].Source, err), Deactivate(rootfs))
		}
	}
	return nil
}

func (p *Plan) apply(newNS NewUserNamespace) error {
	if p.UIDMap != "" {
		return p.mapped(newNS)
	}
	if p.Dir != "" {
		return p.applyIn()
	}
	return p.mount()
}

// applyIn mounts with a working directory of its own: the process's is shared by all containers of the shim.
func (p *Plan) applyIn() error {
	done := make(chan error)
	thread.Go(func() {
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Chdir(p.Dir)
		}
		if err == nil {
			err = p.mount()
		}
		done <- err
	})
	return <-done
}

func (p *Plan) mount() error {
	if err := unix.Mount(p.Source, p.Target, p.Type, p.Flags, p.Data); err != nil {
		return err
	}
	if p.Propagation != 0 {
		if err := unix.Mount("", p.Target, "", p.Propagation, ""); err != nil {
			return fmt.Errorf("set propagation: %w", err)
		}
	}
	// A bind mount takes its flags only when it is mounted again.
	const bindReadonly = unix.MS_BIND | unix.MS_RDONLY
	if p.Flags&bindReadonly == bindReadonly {
		if err := unix.Mount("", p.Target, "", p.Flags|unix.MS_REMOUNT, ""); err != nil {
			return fmt.Errorf("make bind mount read-only: %w", err)
		}
	}
	return nil
}

// Deactivate unmounts everything that is mounted on rootfs, also what lies below it. A directory on which nothing is
// mounted, or that is gone, is no error.
func Deactivate(rootfs string) error {
	for {
		// MNT_DETACH: a process of the host that looks into the container must not keep it from being deleted.
		err := unix.Unmount(rootfs, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return fmt.Errorf("unmount %s: %w", rootfs, err)
		}
	}
}
