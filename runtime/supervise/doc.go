// Package supervise owns a container while it lives: it enforces what the kernel does not enforce by itself, keeps the
// container's helpers running, sees its processes come and go, and keeps the evidence.
//
// # Where it runs
//
// In the process that stays: the shim, `agentsafectl run` and `agentsafectl mcp` give [InProcess] to
// container.CreateOptions.Supervise. On the command line of an engine nobody stays, so create starts the program
// agentsafe-monitor, which calls [Serve], before the container's own program can run; it needs no engine and outlives
// it. A profile without any such rule has no supervisor at all.
//
// Either way the supervisor listens on monitor.sock in the state directory (package wire), through which `agentsafe
// start`, exec and delete speak to it. Whoever can't reach it fails: a container whose limits nobody enforces gets no
// further process.
//
// # What it enforces
//
// Time: SIGTERM to every process of the container, [Grace] later SIGKILL to its whole cgroup, which no fork, double
// fork or setsid leaves. Timers run on the monotonic clock, so a clock that jumps changes nothing; time that the
// machine sleeps does not count. An exec with a limit of its own has a sub-cgroup, so that it alone ends, with all its
// descendants. CPU time is polled, so it may be exceeded by up to [cpuPoll] times the number of processors.
//
// Why a container was ended is kept in its state directory (`agentsafe state` prints it), and in the evidence.
//
// # Plugging in
//
// A [Service] is a helper process that is started before the container's program, and again when it ends. [OnExec]
// functions are called, one after the other, when a process of the engine's has ended, before its parent learns of it
// where the parent is this process.
//
// # What it refuses
//
// To judge: what a limit is comes from the profile in the container's state. Requests of anybody but root: the
// directory of the socket is closed to others.
//
// Minimum kernel: 5.15. The exit status of a process whose parent is somebody else is known from Linux 6.15
// (PIDFD_GET_INFO after its end) or from the parent's own report; otherwise it is said to be unknown.
//
// Rejected: a timer in the container's init (the task is its sibling or itself, and may kill it), a systemd timer per
// container (hosts without systemd, no cgroup v1), one daemon for all containers (its failure would be everybody's).
package supervise
