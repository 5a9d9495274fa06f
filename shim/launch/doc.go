// Package launch is the program that containerd runs for each container, as containerd-shim-agentsafe-v2: it starts the
// shim and cleans up behind it.
//
//	start        answers with the address of the shim for a container, and starts it if there is none
//	delete       says how the container ended, and hands over to the shim's program if there is something to clean up
//	-v           prints the version
//	(all else)   is the shim's program, agentsafe-shim, which is installed beside this one (shim/bootstrap)
//
// # Why two programs
//
// containerd waits for two of these before and after every container, and what the shim is made of (protocol buffers,
// ttrpc, the runtime) takes a Go program 20 ms to initialise here, this one 10: of the 105 ms of a task's cycle the first
// split took 20. So it links neither, and the few fields that it needs of containerd's messages are taken from the bytes
// (params.go).
//
// # What start answers
//
// containerd 1.6 to 2.2 give options or nothing on standard input and take a bare address; 2.3 and newer give
// BootstrapParams and take a BootstrapResult. Which of them is asking is told by the input: parameters that name the id
// and the namespace of the command line. The task service is the same in both cases. A handler's settings are read by the
// shim's program, which knows their types (-handler).
//
// # What it refuses
//
// A missing namespace or id, a group annotation or a config.json of unreasonable size (CVE-2026-47262), a socket
// directory that is not the caller's alone. Minimum kernel: 5.15.
package launch
