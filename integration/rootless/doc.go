// Package rootless holds tests of what an ordinary user can do: agentsafectl without an engine, the OCI commands,
// Podman, each as a user who exists in the box alone, with and without subordinate ids; and of a Docker engine that maps
// root to such ids. Where runc has the same, it runs beside.
package rootless
