// Package idle gives a shim's memory back to the host while nobody calls it.
//
// A shim lives as long as its container and mostly waits. What its start left resident is not needed for that: the heap's
// free pages, and the pages of its own program that are mapped because they were run once, 64 KiB at a fault. The kernel
// takes the latter back under pressure alone, and a host with hundreds of shims pays for their page tables until then.
//
// Data in: the moments of calls. Data out: none; the process gets smaller. Of the program only mappings of its own file go,
// that can't be written and of which no page is private: their pages stay in the page cache, and whoever runs them again
// has them mapped again, without reading. Handlers on other threads may run while that happens.
//
// Measured with a shim of one container (Linux 6.18): 13.5 MiB resident before, of which 9.4 of the program, and 5.1 after;
// the first call after a rest pays some tens of page faults. It needs /proc; without it, nothing is given back, which is no error.
//
// [Unused] is for a shim that was started and then forgotten, by a containerd that was killed in between: nobody else ends it.
//
// Rejected: a smaller program (what is linked is protobuf's and ttrpc's, mostly), MADV_COLD and MADV_PAGEOUT (the first does
// not unmap, the second drops pages from the cache that other shims use), and giving back after every call (exec's next
// call would pay each time).
package idle
