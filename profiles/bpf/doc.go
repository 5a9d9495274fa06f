// Package bpf turns a profiles.SeccompFilter into the program that seccomp(2) takes: from a cache, or by running
// agentsafe-seccomp and filling the cache.
//
// The cache is a directory of mode 0700, one file for each key. A file is a header with the sha256 of what follows, so
// that half a file left by a crash or a full disk is compiled anew and never installed. A directory or file that
// somebody else owns or can write to is an error: whoever writes a filter decides what it allows.
//
// Minimum kernel: 5.15.
//
// Rejected: calling libseccomp here, since cgo costs each start of the runtime a millisecond; a directory that is
// shared by all users of a host.
package bpf
