// Package rdt puts a container into a class of service of Intel's Resource Director Technology, by the kernel's resctrl
// file system: which ways of the last cache, and how much memory bandwidth, its processes may use.
//
// Data in: linux.intelRdt of a spec. Data out: a [Group], which is plain data for the state file. Without a resctrl file
// system the error is [ErrUnsupported]: nothing is silently weaker.
//
// A class that the spec names (closID) is somebody else's: it is joined, never made without being told what it holds,
// compared if it exists, and not removed. Without a name the container has a class of its own, which ends with it.
//
// Minimum kernel: 4.10 with CONFIG_X86_CPU_RESCTRL, and resctrl mounted on /sys/fs/resctrl.
// Source: runtime-spec 1.3.0, config-linux.md "IntelRdt"; Documentation/filesystems/resctrl.rst.
//
// Rejected: intel/goresctrl, whose configuration of classes is the administrator's business and not a runtime's.
package rdt
