// Bench measures what a container costs: `agentsafe run`, `runc run` and `crun run` of `true` with one and the same
// bundle (a network namespace and a cgroup; with and without Docker's default seccomp filter), by turns, and floor.c,
// the least that any runtime could need on this kernel. It prints medians, their ratios, and the peak memory of each
// program; with -json as JSON.
//
//	bench -runtime PATH [-runs N] [-rounds N] [-json] [-target]
//
// Then each hardening by itself, in pairs that run beside each other: the profile agent and a build of the runtime that lacks
// one thing of it, or the profile agent and one with a field more. What it prints is the median of the differences, with
// the interval that holds the true one in 95 of 100 cases, by the clock and in processor time. The builds are made with go
// build -overlay from a copy of one file in which a text is exchanged, so that production code has no switch.
//
// Each run is started and timed by measure.c, a program of a few hundred kilobytes: a child of a Go program would
// inherit its parent's peak memory in ru_maxrss (Linux carries it over execve), and its start would be timed with the
// garbage collector's. By turns, because the machine is never equally quiet twice. -target makes the program exit 1
// when the targets of the project are missed: at most 0.3 x runc, at most 0.8 x crun, at most 12 MiB.
//
// It refuses to run anywhere but in a box of package harness, without the machine's network and with a private
// mount namespace. Needs cc, runc, crun, Linux 5.15 and root. Rejected: testing.B, which runs one subject at a time and
// reports means; hyperfine, a shell per run.
package main
