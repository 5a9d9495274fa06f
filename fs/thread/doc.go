// Package thread runs functions that change what belongs to a thread (its mount namespace, its ids) on a thread that ends
// with them.
//
// Data in: a function. Data out: nothing; the function tells its caller by a channel of its own.
//
// runtime.LockOSThread without its counterpart ends a thread with its goroutine, unless that is the process's first thread:
// it can't end, is parked for ever, and /proc/self goes on to show its namespaces as the process's (runtime.LockOSThread,
// "main thread"). In a shim it would hold a container's mounts until the shim ends.
//
// Minimum kernel: 5.15.
//
// Rejected: keeping the main goroutine locked to the first thread, so that no other gets there: each switch to it costs a
// thread more.
package thread
