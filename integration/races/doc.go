// Package races sets many callers on the runtime at once: on one id and on many, with every operation that an engine may
// call while another one is under way. Whatever the order turns out to be, each call succeeds or fails with a reason that
// fits, no two containers have one id, delete --force removes everything, and the id can be used again.
//
// make test-race runs this suite and others on programs that were built with the race detector; a report is a failure.
//
// It refuses nothing. Data in: the program under test. Needs root and Linux 5.15.
//
// Rejected: delays in production code that make a race certain; the operations are short enough to meet often.
package races
