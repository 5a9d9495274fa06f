// Package call runs one command in a container that is there already and says what it did: output, exit status, time,
// changed files, refusals. It is what `agentsafectl exec` and the tools of `agentsafectl mcp` have in common.
//
// Data in: an open container and a [Request]. Data out: a [Result], whose texts are safe for a terminal and honest to a
// model ([Visible]): what a task writes is hostile.
//
// A command gets a sub-cgroup of its own, so that its end by time or cancellation takes its descendants along, whatever
// they did to their sessions, and nothing else. Of each output stream the first bytes are kept and the rest is counted,
// in constant memory. The clock is monotonic.
//
// What is wrong with the command (no such program) is a [CommandError]; every other error is the sandbox's.
//
// What was refused while a command ran: by the network gateway, and by system call filters and Landlock where the profile
// has the kernel report it, as the container's supervisor hears of it; the forks that the limit of processes refused and
// the processes that the kernel ended for want of memory, by counting. What the kernel reports names a process, and so the
// command, by its sub-cgroup; connections and counters do not, and commands that run at the same time share those.
//
// Minimum kernel: 5.15. Rejected: reading the task's system calls to name each refusal (a tracer in every tool call);
// reading the file of denials that the container sees (it has each thing at its first, 10th, 100th time only).
package call
