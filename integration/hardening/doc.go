// Package hardening asserts from inside what the default profile takes away, for a container's first process and for
// exec, bare and under Docker: privileges, system calls with their errno, addresses, paths, and what an engine asks
// beyond the profile. Each refusal is shown next to runc, under which the same thing works: a test whose attempt would
// fail anyway proves nothing.
//
// It has no code but tests. The attempts are made by integration/probe. It refuses addresses outside of the box: the
// metadata service is a fake one. Needs Linux 5.15, root, Debian's docker.io. Rejected: reading the compiled policy,
// which says what was meant and not what holds.
package hardening
