// Package oci tests the runtime by its command line, as engines call it but without one: every command, side by side
// with runc, and what happens on bad input. Whoever changes what runtime/container does to a container looks here first.
//
// It has no code but tests. It refuses to compare the words of error messages beyond those that engines match on.
// Needs Linux 5.15 and root. Rejected: golden files of whole outputs, which would fix runc's wording as ours.
package oci
