// Package shim serves containerd's task API over runtime/container: one process for each pod or group of containers,
// which starts them, is their parent, copies their output and reports their end.
//
// # Architecture
//
//	containerd ──ttrpc──▶ Service            one method, one call of the task API (v2 and v3 alike)
//	    ▲                   │
//	    │                   ├─▶ runtime/container     create, start, exec, kill, delete: in this process, no fork of a runtime
//	    │                   ├─▶ shim/snapshot         the mounts of the root file system
//	    │                   └─▶ shim/stdio            FIFOs, log programs, files, terminals
//	    └──── Publisher ◀───┘                         events, in order, again when containerd was away
//
// shim/bootstrap is the program around it: start, delete, -info, sockets, logs. shim/options reads what an engine's
// configuration says, shim/metrics translates measurements.
//
// # Order
//
// A task's events are queued while its lock is held, so they leave in the order in which things happened: create, start,
// exec-added, exec-started, oom, exit, delete. The first process's exit is the last exit of its task: when it has ended,
// the others are killed where the kernel does not do that, and waited for.
//
// # Processes
//
// Every process is a child of the shim and has a pidfd and a goroutine that waits for it; there is no table by pid and
// no reaper, so that no exit can be lost, taken for another's or given to a process that got the same number. The shim
// is no subreaper: orphans of a container go to its first process, or without a pid namespace to the host's, and end
// with the container's cgroup.
//
// The shim's working directory, umask and limits are shared by all its threads and are never changed; what a container
// needs of them is set by its init program.
//
// # What it refuses
//
// Checkpoints, options of a type it does not know, and calls in the wrong order: with containerd's own error codes,
// NotFound, AlreadyExists, FailedPrecondition, InvalidArgument, PermissionDenied (the policy), Unimplemented.
//
// Minimum kernel: 5.15. Rejected: containerd's pkg/shim, which costs 1.6 ms more for each start (twice per container)
// and whose 2.4 release is refused by containerd up to 2.2.
package shim
