// Package docker runs Docker Engine with the runtime under test beside runc: what a person does with `docker run`,
// exec, stop, kill, logs, cp and the rest must come out the same.
//
// It has no code but tests. It refuses Docker's default socket and data directory. Needs Debian's docker.io, Linux 5.15
// and root. Rejected: one engine per test (its start costs a second), and the engine's Go client (people use the
// command, and its error texts are part of what must be the same).
package docker
