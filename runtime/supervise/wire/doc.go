// Package wire is how a container's supervisor is spoken to: one message and one answer on a unix socket of packets, as
// JSON, with descriptors beside it.
//
// The socket lies in the container's state directory, which only root can enter. Data in: [Request], from the programs
// that do something with the container (start, exec, delete, promote). Data out: [Reply]. A message is bounded by
// [MaxBytes]; whoever sends command lines shortens them before ([Shorten]).
//
// The package is linked into the program that engines start for every operation, so it holds types and two functions,
// and nothing that has to be set up. Minimum kernel: 5.15.
//
// Rejected: ttrpc or HTTP (milliseconds of start-up for five messages), and a stream socket (descriptors would need
// framing of their own).
package wire
