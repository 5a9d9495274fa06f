// Package container is the host side of a container's life. One verb is one file: create, start, exec, kill, delete,
// pause, update, stats. The command line (cmd/agentsafe), the shim and agentsafectl call it in their own process.
//
// # Architecture
//
//	engine ──▶ cmd/agentsafe, shim, cmd/agentsafectl
//	              │
//	              ▼
//	       runtime/container        this package: reads, judges, acquires, undoes
//	        │       │       │
//	        ▼       ▼       ▼
//	   profiles  netns  runtime/cgroup      plans of policy; nftables; control groups
//	        │
//	        ▼
//	   runtime/initproc             the program of the child, as data; clone
//
// Everything that needs thought happens here, before or beside the child: parsing, look-ups in the image, policy,
// cgroups, firewall rules. The child itself is a table of system calls (runtime/initproc) without a Go runtime, a libc
// or a heap: it can't be confused by an image, it starts in a fraction of a millisecond, and a created container that
// waits for start costs a few pages.
//
//	host                                   child
//	────                                   ─────
//	claim state directory, lock it
//	read config.json, judge it
//	open root and bind sources
//	cgroup (beside the rest)
//	clone ───────────────────────────────▶ namespaces, mounts, devices, masks
//	network rules, cgroup placement, ids   │
//	state with the pid                     │
//	hooks: prestart, createRuntime,  ◀──── hook point (only with hooks)
//	       createContainer
//	go ──────────────────────────────────▶ cgroup namespace, pivot_root, ids, capabilities, Landlock rules
//	pid file  ◀─────────────────────────── ready
//	                                       waits at start.sock
//	start: connect, go ──────────────────▶ Landlock, close descriptors, seccomp, execve
//	started ◀───────────────────────────── end of file, or the failing step and its errno
//
// # State
//
// Below the root directory (default /run/agentsafe) each container has a directory of mode 0700, whose creation is the
// claim on its id and whose flock serialises create, start, exec and delete. state.json is replaced atomically, before
// each acquisition that a crash would leave behind; [Runtime.Delete] with force cleans up after a crash at any point.
// A child whose creator dies before the container is ready sees the end of its socket and ends.
//
// # Refusals
//
// The package refuses specs that name what it does not know (namespace types, rlimits, mount options the kernel
// rejects), a host name without a UTS namespace, a working directory outside of the root, and whatever the profile
// refuses. Errors name the field of config.json.
//
// Minimum kernel: 5.15.
//
// Rejected: a Go init by re-executing the binary (what runc does, with C in front): 2 ms more for each container and
// each exec, a runtime's worth of threads in the container's namespaces, and a copy of the binary to protect.
package container
