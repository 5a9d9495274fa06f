// Package shim tests containerd-shim-agentsafe-v2.
//
// direct_test.go and what it serves play containerd: they start the shim as a daemon would, speak the task API to it,
// receive its events, and may do what no daemon does: call in the wrong order, disappear, stop reading. engine_test.go
// runs real daemons: Debian's containerd (1.6) and a current one, which is built from the module integration/engines/
// containerd and kept in the harness's cache. bench_test.go measures, by turns, against runc's shim with runc and crun.
//
// It has no code but tests. Sockets, state and images are private. Needs Debian's containerd, runc and crun, Linux 5.15
// and root. Rejected: mocks of containerd, which agree with whatever the shim does.
package shim
