// Package snapshot activates the mounts of a containerd snapshot on a bundle's rootfs, and takes them away again.
//
// Data in: the mounts of a task request. Data out: a mounted directory, or one error and nothing mounted. The plan
// ([PlanMount]) is pure.
//
// It refuses what needs a helper program or a loop device (containerd's mount manager does these itself unless a shim
// claims them, which ours does not), and targets outside of the rootfs. Layers of a pod in a user namespace (options uidmap
// and gidmap) are mounted with mapped owners.
//
// Minimum kernel: 5.15; 5.19 for mapped owners. Rejected: containerd's core/mount, which costs 0.4 ms of start-up in packages that are needed
// for nothing else, and forks to change a directory.
package snapshot
