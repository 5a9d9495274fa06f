// Package podman runs Podman with the runtime under test beside runc. Podman talks to a runtime through conmon and with
// flags of its own, so what passes under Docker can fail here.
//
// It has no code but tests. Storage and state are private. Needs Debian's podman and conmon, Linux 5.15 and root.
// Rejected: rootless Podman, which needs a user session that CI has not.
package podman
