// Package criu runs CRIU's program, which writes the processes of a container to a directory of images and makes
// processes of such a directory again.
//
// Data in: options, the first process's pid or the root file system, and what of the container comes from outside (bind
// mounts, a network namespace, streams). Data out: images, or a pid; an error carries CRIU's own first complaint. [PlanDump]
// and [PlanRestore] make its command line and touch nothing.
//
// It refuses what would not come back as it was: terminals, whose other end is the engine's; user namespaces; images that
// somebody else could have written, since who writes images says what runs as root.
//
// Minimum: CRIU 3.17 (Debian 12), and a kernel that it knows: it fails on kernels whose vDSO is younger than itself.
//
// Rejected: its protocol over a socket (swrk), which needs protocol buffers in a program that starts for every container.
package criu
