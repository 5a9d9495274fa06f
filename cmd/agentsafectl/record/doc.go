// Package record watches a real run and writes the smallest profile, of the kind that people would write, that lets the
// run pass.
//
// Data in: a command, or a process of a container that waits to be started. Data out: [Observations] (files by kind of
// access, programs, names and ports asked for, system calls outside of the built-in list, the most processes at a time),
// and from these a commented YAML file that extends the tightest built-in profile. Observations of several runs merge.
//
// # Mechanism
//
// ptrace(2) with a seccomp filter of SECCOMP_RET_TRACE: the run stops for the calls that matter (opening, executing,
// renaming, connecting, and whatever the built-in list does not allow), all others run at full speed. Paths are read
// from the stopped task's memory. A task that rewrites its arguments meanwhile fools the recorder, which is no boundary:
// nothing of this package is in the path of enforcement, and what it writes is read by a person before it holds.
//
// [Run] takes a command of this host, [Attach] a container's process, with its descendants: the runtime installs
// profiles.RecordFilter beside the container's own filters, and has the recorder in place before the first instruction of
// the image. The paths of a task are looked up beneath its own root (openat2, no magic links), and what is kept of a run
// is bounded: both are a hostile task's to choose.
//
// The run of [Run] is NOT contained: it runs on this host, as whoever called, with a terminal's rights. Debuggers in a
// recorded run can't trace their own children while they are traced; that they asked is recorded.
//
// Minimum kernel: 5.3 (PTRACE_GET_SYSCALL_INFO).
//
// Rejected: a seccomp listener (it answers from another thread for each call, at twice the cost of a stop measured here,
// and a listener that continues calls takes the slot of a sandbox inside); fanotify (files without the kind of access to
// their directories, and no calls or names); tracing every system call (a compile job took 9 times as long).
package record
