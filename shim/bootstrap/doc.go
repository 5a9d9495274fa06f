// Package bootstrap is the program around the shim's service: what containerd runs as containerd-shim-agentsafe-v2.
//
//	-info        prints what the runtime can do
//	start        answers with the address of the shim for a container, and starts it if there is none
//	(no action)  is the shim itself
//	delete       cleans up after a shim that was killed, and tells the container's exit status
//
// # What start answers
//
// containerd 1.6 to 2.2 give options or nothing on standard input and take a bare address; 2.3 and newer give
// BootstrapParams and take a BootstrapResult. Which of them is asking is told by the input: parameters that name the id
// and the namespace of the command line. The task service is the same in both cases.
//
// # Sockets
//
// A shim's socket has mode 0600 from the moment it exists, in a directory of mode 0700 that is the shims' own or the one
// that containerd names, and is never abstract (CVE-2020-15257). Its name is a hash of containerd's address, the
// namespace and the group: the pod's sandbox, or an annotation, or the container itself.
//
// # What it refuses
//
// A missing namespace or id, a group annotation or a config.json of unreasonable size (CVE-2026-47262), a socket
// directory that is not the caller's alone. Minimum kernel: 5.15.
package bootstrap
