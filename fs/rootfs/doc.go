// Package rootfs turns the mounts of an OCI spec into a mount plan, and opens what a plan needs from the host.
//
// Data in: mounts of config.json, all of it hostile but for the caller's authority. Data out: [Mount] values with the
// kernel's own flags, and, for bind mounts, detached mount trees as file descriptors (open_tree(2)).
//
// The package attaches nothing. Sources are opened on the host side, before the child exists; the child (see
// runtime/initproc) attaches them by descriptor, beneath a descriptor of the root (openat2 RESOLVE_IN_ROOT), so that
// no path of a container is ever resolved from the host's root.
//
// It refuses whatever contains a NUL, sources that don't exist or change while they are opened, and devices that are not
// the ones they should be. An option that it does not know is the file system's, which refuses it at the mount. A `..`
// above the root stays at the root.
//
// Minimum kernel: 5.15 (open_tree, mount_setattr with AT_RECURSIVE, fsopen).
//
// Rejected: mount(2) with MS_REMOUNT in a second call, as runc does: between the two calls the mount is writable, and
// flags that a user namespace has locked are lost; mount_setattr sets attributes on the detached tree before anybody
// can see it.
package rootfs
