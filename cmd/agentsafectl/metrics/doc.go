// Package metrics writes what the containers of a host use, and which limits they have met, in the text format of
// Prometheus (version 0.0.4).
//
// Data in: the state directories of all engines (package ps) and the containers' cgroups. Data out: text. It keeps no
// state and starts nothing: each call measures. Containers that go away while it looks are passed over, and what the
// kernel does not tell is left out, not written as zero.
//
// Labels come from engines and are escaped; nothing that a task writes is in them.
//
// Minimum kernel: 5.15. Rejected: the client library (start-up time and a registry for a dozen of numbers), a listener in
// every shim (a port or socket for each container that somebody has to find).
package metrics
