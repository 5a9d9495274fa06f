// Package timerslack keeps the Go runtime's monitor thread from costing a short program a fifth of its time.
//
// # What it is against
//
// The Go runtime's sysmon wakes every 20 us for as long as the program makes system calls that block, to hand their
// processor on: on a program that makes some hundred of them in 30 ms that is a timer, an interrupt and two context
// switches every 100 us. Measured on two processors of a virtual machine: of an `agentsafe run`, 128 voluntary switches
// become 41, 43 ms of processor time 35, 35.8 ms of wall time 32.1; on one processor 36.9 ms of wall time 32.4.
//
// # How
//
// A thread's timer slack says how much later than asked its sleeps may end (prctl(2), PR_SET_TIMERSLACK), and a cloned
// thread inherits it. Sysmon is cloned before any line of Go runs and nothing of its own can be set, so the program's
// first instructions are ours: the linker's -E makes entry its entry point, which sets [Monitor] and goes on to the Go
// runtime's. Built without -E nothing of this happens, and [Restore] does nothing.
//
// Other threads inherit the slack as well, those that the Go runtime starts before main. main gives the first one back
// what it had, by [Restore]; what starts a container, a hook or a program of ours does so on a thread that has it back
// ([Children]): nothing of them sleeps longer than it would otherwise.
//
// # What it costs
//
// Where every processor of the program is held by a system call that blocks, the next goroutine waits up to [Monitor]
// for sysmon, instead of a tenth of a millisecond. That is how long sysmon itself lets it wait once nothing has
// happened for a while (10 ms, runtime/proc.go), so that no program may rely on less. Programs that serve for long
// (agentsafe-shim, agentsafe-gateway) are linked without.
//
// Minimum kernel: 2.6.28.
//
// Rejected: mapping the program's pages by the entry as well (MADV_POPULATE_READ of text and read-only data costs 2 ms
// more than the faults that it saves, of data and bss as much as it saves); /proc/PID/timerslack_ns from main, which is 8 ms too late and has to guess which thread is sysmon;
// GOMAXPROCS=1, under which sysmon polls just as often; a small program that sets the slack and executes the real one,
// which costs what it saves.
package timerslack
