// Package profiles says what a container may do, and compiles that to what the kernel enforces.
//
// Data in: an OCI spec as the engine wrote it, a [Profile], and [HostFacts] that the caller has gathered from opened
// handles. Data out: a [Plan], which is the hardened spec, seccomp filters, one Landlock ruleset, a network policy, and
// notes on everything that was tightened. [PlanContainer] is pure: it makes no system call, does not change its input,
// and gives the same plan for the same input. [PlanProcess] does the same for a process that joins later.
//
// # Refusals
//
// What the engine's own defaults bring and the profile does not grant is cut, with a [Note]. What somebody asked for
// beyond the engines' defaults (privileged, added capabilities, host namespaces, devices, dangerous bind mounts) is a
// [RefusedError], which names the rule and what would allow it. Nothing is silently dropped or silently granted. The
// tables behind that are data, with a reason in each line: hostpaths.go, devices.go, syscalls.go.
//
// The package reads no files: YAML is package profilefile, BPF is package bpf and cmd/agentsafe-seccomp. It is imported
// by programs whose start is counted in tenths of a millisecond, so it has no maps, regular expressions or parsers at
// package level.
//
// Minimum kernel: Linux 5.15; [PlanLandlock] says which ruleset needs more.
//
// Rejected: judging the paths of bind mounts as the spec spells them (symlinks; a second name of the same directory),
// hence the real path and the identity of the opened source in [MountFacts]; one seccomp filter that is the
// intersection of the engine's and ours (the kernel computes that itself when both are installed, and each stays
// readable and cacheable on its own); a list of refused syscalls in place of allowed ones (tomorrow's syscalls).
package profiles
