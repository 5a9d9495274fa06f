// Command agentsafectl is agentsafe for people and for the harnesses of agents:
// it runs a task with no engine installed, and it says what this host can
// enforce.
//
//	agentsafectl run [--workspace DIR] -- CMD...   this host's programs, this folder
//	agentsafectl run --image FILE.tar -- CMD...    an image, without an engine
//	agentsafectl doctor                            what the kernel and the host offer
//
// run, in the order in which things happen: remove what a crash left (sweep),
// claim a run directory, plan the container (package task), write the skeleton
// or mount the image's layers, create and start the container in this process
// (package runtime/container), forward signals and the terminal, wait, delete
// everything.
//
// Exit status of run: the command's own; 128+N if signal N ended it; 124 if
// --timeout did; 125 if agentsafectl itself failed; 126 if the command can't be
// executed; 127 if there is no such command.
//
// It refuses to run without root, to take a home or system directory as
// workspace, to pass on the caller's environment, and to hand the caller's
// terminal, files or directories to the task: what is not a pipe or a socket
// already is copied through a pipe.
//
// Minimum kernel: 5.15.
//
// Alternatives rejected: a daemon (nothing has to outlive the command); mounting
// the overlay of an image in the host's mount namespace (a crash would leave it
// there; a private namespace takes it along).
package main
