// Package moby runs a current Docker engine with our shim as a runtimeType.
//
// dockerd comes from the module integration/engines/moby, its containerd from integration/engines/containerd, the client
// from Debian, which is older and knows no annotations: for these the tests speak the engine's API. Runtimes: by name,
// by absolute path, and by name with options that choose the profile none.
//
// It has no code but tests. Sockets, state and images are private. Needs Debian's docker.io and runc, Linux 5.15 and
// root; the engine is built once, which takes the network and minutes. Rejected: Docker's own packages, which are of
// another distribution's archive.
package moby
