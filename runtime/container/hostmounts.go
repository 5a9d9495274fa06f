package container

import (
	"errors"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A container without a mount namespace, which only the profile none lets pass, mounts in the caller's. Everything that
// it mounts lies below one bind mount of its root file system on its own path, so one unmount takes it all away.

// noteHostMounts writes down what Rootfs is on, before anything is mounted there.
func (cr *creation) noteHostMounts() error {
	if cr.ns.own[specs.MountNamespace] || cr.ns.joined[specs.MountNamespace] != nil {
		return nil
	}
	id, err := mountID(cr.root.Path)
	if err != nil {
		return fmt.Errorf("root.path: identify the mount: %w", err)
	}
	cr.c.state.HostMounts, cr.c.state.HostRoot = true, id
	return nil
}

// removeHostMounts takes away what a container without a mount namespace has mounted. It is no error if nothing is there.
func (c *Container) removeHostMounts() error {
	if c.state == nil || !c.state.HostMounts {
		return nil
	}
	id, err := mountID(c.state.Rootfs)
	if errors.Is(err, unix.ENOENT) || err == nil && id == c.state.HostRoot {
		return nil
	}
	if err == nil {
		err = unix.Unmount(c.state.Rootfs, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if err != nil {
		return fmt.Errorf("unmount root file system of container %q: %w", c.id, err)
	}
	return nil
}

// mountID returns the number of the mount that path is on. Source: statx(2), STATX_MNT_ID, Linux 5.8.
func mountID(path string) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	return st.Mnt_id, nil
}
