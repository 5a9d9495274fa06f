// Package wire is what whoever starts a gateway tells it: plain data, without the gateway. Programs that only start one
// link this and not its parsers, servers and TLS.
//
// Data in and out: JSON, with secrets in it, so it travels over a descriptor and is never a file. It refuses nothing:
// package gateway judges what it gets.
//
// Minimum kernel: none. Rejected: flags and environment variables, which anybody can read in /proc.
package wire
