// Package stdio connects the standard streams of a container's process to where an engine wants them: FIFOs, log
// programs (binary://), files (file://), or nothing.
//
// # Data in, data out
//
// [Open] takes the addresses of a task request and returns a [Streams]: three files for the process ([Streams.Child])
// and, on the shim's side, goroutines that copy. With a terminal the process gets a socket over which it sends the
// master, and [Streams.Terminal] takes it in.
//
// # What holds
//
//   - A process always writes to a pipe of its own, never to the engine's FIFO: images re-open /dev/stdout, which on a
//     FIFO of the host would be refused by Landlock and by permissions, and would let a container change the FIFO.
//   - Nothing blocks a create or start: a FIFO whose reader is late, or never comes, is waited for beside it.
//   - Nothing is lost: copying goes on after the process has ended, until the end of file or [Streams.Close]. The end is
//     reported a moment later if nobody reads yet ([Streams.AwaitReaders]): a client that hears of it first gives up.
//   - Nothing keeps a process alive: a reader that stops reading fills its FIFO, then the pipe, then the process blocks
//     in write(2), where SIGKILL reaches it.
//   - A reader that goes away and comes back (containerd restarted) finds the FIFO still open.
//
// Bytes move by splice(2) from pipe to FIFO, so that a stream costs no buffer and no copy; a destination that does not
// support it (a file opened for appending, a terminal) is served with read and write.
//
// # What it refuses
//
// Addresses of an unknown scheme, relative paths, and anything but a FIFO where a FIFO is expected.
//
// Minimum kernel: 5.15. Rejected: github.com/containerd/fifo, which parks one thread and two goroutines for each end of
// each FIFO and blocks until the other side has opened it.
package stdio
