// Package confine takes away from the gateway's own process what it does not need: files, programs, other processes, and
// every system call but those of a network server.
//
// [Process] is called once, when all descriptors are open and all files are read. It sets no_new_privs and undumpable,
// installs a Landlock ruleset without rules (no file can be opened, no TCP port be bound, and where the kernel has scopes
// no abstract socket be reached and no process be signalled), and last a seccomp filter in all threads. The gateway is
// started with a uid of its own and without capabilities; this package does not change ids.
//
// Data in: none. Data out: an error, upon which the caller must not serve.
//
// Minimum kernel: 5.15; Landlock is used as far as the kernel has it, and its absence is an error unless the kernel has
// none at all (the seccomp filter then still refuses to open files).
//
// Rejected: a namespace of its own for the process (a mount and a pid namespace need privileges that whoever starts it
// may lack, and cost a millisecond); go-landlock (the raw calls are forty lines, and restricting all threads needs
// AllThreadsSyscall, which this program has without cgo).
package confine
