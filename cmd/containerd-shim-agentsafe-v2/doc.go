// Command containerd-shim-agentsafe-v2 is what containerd, Docker and Kubernetes run containers of the runtime
// io.containerd.agentsafe.v2 with. It is installed in containerd's PATH, beside agentsafe-shim, which it starts, and
// agentsafe-seccomp. shim/launch has its actions.
//
// A link named containerd-shim-agentsafe-PROFILE-v2 makes the runtime io.containerd.agentsafe-PROFILE.v2, whose
// containers have that profile.
package main
