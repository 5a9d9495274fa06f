// Command agentsafe is an OCI runtime: Docker, containerd, Podman and CRI-O call it in the place of runc, with runc's
// commands, flags, output and messages. It is started for every operation of a container, so it imports only what it
// needs, and it allocates little and collects nothing.
//
// Its own flags beyond runc's: --profile names the policy for new containers (Docker: runtimeArgs), --config the
// host's configuration file.
package main
