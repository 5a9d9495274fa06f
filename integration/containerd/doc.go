// Package containerd runs containerd's ctr client and runc's shim (io.containerd.runc.v2) with the runtime under test
// in runc's place: the shim's use of a runtime (log file in JSON, FIFOs for input and output, console socket, exit by
// pid file) is that of Docker and Kubernetes, without what they add.
//
// It has no code but tests. Sockets, state and images are private. Needs Debian's containerd, Linux 5.15 and root.
// Rejected: containerd 2 built from source here, which takes minutes; it belongs to the tests of our own shim.
package containerd
