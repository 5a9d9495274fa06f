// Command agentsafe-shim is the shim of the runtime io.containerd.agentsafe.v2: one process for each pod or container, which
// is the parent of what runs in it. Nobody calls it directly: containerd runs containerd-shim-agentsafe-v2, which starts
// it; the two are installed beside each other and beside agentsafe-seccomp. shim/bootstrap is the program, shim its
// service.
package main
