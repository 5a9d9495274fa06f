// Package refusals is `agentsafectl denials`: what a container was refused, by which rule, and what would allow it.
//
// Data in: the file that the container's supervisor writes and the container reads (runtime/denials), and for one that
// is gone its evidence. Data out: a table for people, or JSON lines. It changes nothing.
//
// A container that nobody supervises (profile agent, unless its profile asks for the kernel's reports) has the notes of
// its creation alone, and the command says so.
//
// Minimum kernel: that of agentsafe. Rejected: asking the supervisor over its socket (the file is there when the
// supervisor is busy, or gone).
package refusals
