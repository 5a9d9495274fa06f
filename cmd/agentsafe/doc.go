// Command agentsafe is an OCI runtime: Docker, containerd, Podman and CRI-O call it in the place of runc, with runc's
// commands, flags, output and messages. It is started for every operation of a container, so it imports only what it
// needs, and it allocates little and collects nothing.
//
// Its own flag beyond runc's is --profile: the policy for new containers, by name. It is the caller's, that is, the
// administrator's who configures the engine (Docker: runtimeArgs).
package main
