// Command without executes another one where some system calls answer ENOSYS:
//
//	without openat2,clone3 agentsafe run ID
//
// The filter stays with all children. It needs root, so that no_new_privs need not be set.
package main
