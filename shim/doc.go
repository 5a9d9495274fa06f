// Package shim serves containerd's task API over runtime/container: one process for each pod or group of containers,
// which starts them, is their parent, copies their output and reports their end.
//
// # Architecture
//
//	containerd ──ttrpc──▶ Service            one method, one call of the task API (v2 and v3 alike)
//	    ▲                   │
//	    │                   ├─▶ runtime/container     create, start, exec, kill, delete: in this process, no fork of a runtime
//	    │                   ├─▶ shim/snapshot         the mounts of the root file system
//	    │                   ├─▶ shim/wire             the sandbox API and CRI's pods, without their generated code
//	    │                   └─▶ shim/stdio            FIFOs, log programs, files, terminals
//	    └──── Publisher ◀───┘                         events, in order, again when containerd was away
//
// shim/bootstrap is the program around it: start, delete, -info, sockets, logs. shim/options reads what an engine's
// configuration says, shim/metrics translates measurements, shim/idle gives memory back while nobody calls.
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
// # Sandboxes
//
// A pod is a group: containers with the same sandbox id share a shim, whose first container is the pause container. With
// sandboxer = 'shim' there is none: the pod's namespaces are held by a container that is created and never started
// (sandbox.go), and the pod's files are mounted by us. It refuses pods that share processes, since a process that never
// runs its program reaps nobody, and user namespaces.
//
// # What it refuses
//
// Checkpoints, options of a type it does not know, and calls in the wrong order: with containerd's own error codes,
// NotFound, AlreadyExists, FailedPrecondition, InvalidArgument, PermissionDenied (the policy), Unimplemented.
//
// Minimum kernel: 5.15. Rejected: containerd's pkg/shim, which costs 1.6 ms more for each start (twice per container)
// and whose 2.4 release is refused by containerd up to 2.2.
package shim
