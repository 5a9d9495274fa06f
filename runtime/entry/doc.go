// Package entry is what a program that runs for milliseconds does before the Go runtime: its first instructions.
//
// Make links it with the linker's -E, so that start is the program's entry point. Built without, by a plain go build, the
// program is the same and slower; [Restore] does nothing then. Figures are of an `agentsafe run` of 28 ms on a virtual
// machine with two processors.
//
// # The monitor thread polls less
//
// The Go runtime's sysmon wakes every 20 us for as long as the program makes system calls that block, to hand their
// processor on: in a program that makes some hundred of them in 30 ms that is a timer, an interrupt and two context
// switches every 100 us. 128 voluntary switches become 41, 43 ms of processor time 35, and the run a tenth shorter; on one
// processor, an eighth.
//
// A thread's timer slack says how much later than asked its sleeps may end (prctl(2), PR_SET_TIMERSLACK), and a cloned
// thread inherits it. Sysmon is cloned before any line of Go runs and nothing of its own can be set, so start sets
// [Monitor]. Other threads inherit it as well, those that the Go runtime starts before main. main gives the first one back
// what it had, by [Restore]; what starts a container, a hook or a program of ours does so on a thread that has it back
// ([Children]): nothing of them sleeps longer than it would otherwise.
//
// What it costs: where every processor of the program is held by a system call that blocks, the next goroutine waits up
// to [Monitor] for sysmon, instead of a tenth of a millisecond. That is how long sysmon itself lets it wait once nothing
// has happened for a while (10 ms, runtime/proc.go), so that no program may rely on less. Programs that serve for long
// (agentsafe-shim, agentsafe-gateway) are linked without.
//
// # The program is mapped at once
//
// Code and constants are read by some hundred page faults of 64 KiB each, variables by thirty of 4 KiB. start asks for all
// of them by two calls (madvise(2), MADV_POPULATE_READ and MADV_POPULATE_WRITE): a twentieth of the run, for 1 MiB more of
// resident memory. The calls' errors are nothing but the time that they would have saved (Linux < 5.14).
//
// It is so for programs that were copied to where they are. What the linker itself has written lies in the page cache
// page by page, and each fault takes longer: a tenth of a run, more than everything here. Make copies.
//
// Minimum kernel: 2.6.28.
//
// Rejected: /proc/PID/timerslack_ns from main, which is 8 ms too late and has to guess which thread is sysmon;
// GOMAXPROCS=1, under which sysmon polls just as often; a small program that sets the slack and executes the real one,
// which costs what it saves.
package entry
