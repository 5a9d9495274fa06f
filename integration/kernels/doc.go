// Package kernels runs agentsafe where system calls are missing: integration/kernels/without installs a seccomp filter
// that answers ENOSYS, as a kernel from before the call does, and executes the runtime. For each call there is a
// fallback that works, or an error that names the call and the kernel that has it.
//
// A container that is up is ended and removed where a call is missing that only creation needs; what pidfd_open and
// openat2 are for can't be done in another way, and says so.
//
// It refuses nothing. Data in: the program under test. Needs root and Linux 5.15.
//
// Rejected: old kernels under emulation for each call (minutes for each; integration/vm runs one whole kernel), and test
// hooks in production code.
package kernels
