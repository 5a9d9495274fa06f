// Command agentsafe-seccomp compiles a seccomp filter. Standard input is a profiles.SeccompFilter as JSON, standard
// output is the program as the kernel takes it, an array of struct sock_filter. Package profiles/bpf runs it when a
// filter is not in the cache.
//
// It is a program of its own because it is the only one with cgo: libseccomp in the runtime would cost each start a
// millisecond. It takes no paths and no flags, and opens no files.
//
// libseccomp knows comparisons of 64 bits and one default. What it can't express stands before its program, in BPF of
// our own (prefix.go): comparisons of the lower half of an argument, and an answer of its own for unknown calls.
//
// Minimum kernel: 5.15, for the programs; compiling needs nothing of the kernel. Minimum libseccomp: 2.5.4. Names that
// it lacks are in numbers.go.
//
// Rejected: a compiler of our own. It was measured at a twentieth of the time, but a miss of the cache is rare, and
// libseccomp is what the engines' filters are tested against.
package main
