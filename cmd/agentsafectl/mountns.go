package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ownNamespaceEnv is set, to our pid, once the program stands in a mount
// namespace of its own.
const ownNamespaceEnv = "AGENTSAFECTL_MOUNT_NAMESPACE"

// enterOwnMountNamespace gives the whole process a private mount namespace.
// What is mounted afterwards vanishes with the process, however it ends.
//
// unshare(2) moves one thread, and the Go runtime has several; execve makes the
// calling thread the only one. So the program executes itself again, with the
// same pid, and finds itself inside: that call of this function then returns.
func enterOwnMountNamespace() error {
	if os.Getenv(ownNamespaceEnv) == strconv.Itoa(os.Getpid()) {
		// Nothing of the host's tree may carry our mounts back to the host.
		attr := unix.MountAttr{Propagation: unix.MS_SLAVE}
		if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &attr); err != nil {
			return fmt.Errorf("make mount namespace private: %w", err)
		}
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("enter mount namespace: %w", err)
	}
	env := append(os.Environ(), ownNamespaceEnv+"="+strconv.Itoa(os.Getpid()))
	runtime.LockOSThread() // never unlocked: the thread is in another namespace than the rest
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter mount namespace: %w", err)
	}
	return fmt.Errorf("enter mount namespace: execute %q again: %w", self, unix.Exec(self, os.Args, env))
}

// mountOverlay mounts an overlay at target, in a namespace of our own. It is
// mount(2) and not fsconfig(2), which takes at most 255 bytes for all lower
// directories together before Linux 6.5 (lowerdir+).
func mountOverlay(target, options string) error {
	//nolint:forbidigo // fs/rootfs mounts inside containers, by fsconfig; see above
	if err := unix.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount overlay at %q: %w", target, err)
	}
	return nil
}

func unmount(target string) error {
	if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %q: %w", target, err)
	}
	return nil
}

func joinOptions(options []string) string { return strings.Join(options, ",") }
