// Package limits tests under real engines that what a profile bounds is bounded: time, memory, processes, open files,
// output; that a task can't leave its limits behind by forking, sessions or ignored signals; that the reason can be
// told from outside; and that nothing of the supervision stays behind.
package limits
