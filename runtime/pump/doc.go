// Package pump moves the output of processes: from a pipe to where an engine wants it, without copying it through this
// process, and within a limit.
//
// Bytes move by splice(2) from pipe to pipe, so that a stream costs no buffer and no copy; a destination that does not
// support it (a file opened for appending, a terminal) is served with read and write. [Stream] moves everything;
// [Limit] ends a stream after so many bytes, with one line that says so.
//
// Memory is constant, whatever is written: one pipe. A reader that stops reading fills its pipe, then ours, and then the
// process blocks in write(2), where SIGKILL reaches it.
//
// It refuses nothing. Minimum kernel: 5.15. Rejected: counting by ptrace or BPF what a process writes to descriptors that
// it shares with an engine (the engine's pipe would still take it).
package pump
