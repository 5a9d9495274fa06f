// Intruder runs inside containers of the attack tests, as the attacker: what a shell can't do quickly or at all.
//
//	intruder chroot FILE      gets out of a chroot with a second one, and prints FILE as it is at the real root
//	intruder peek FILE        as pid 1, tries to read FILE through /proc/N/root and /proc/N/cwd of whoever appears,
//	                          for ever; prints "escaped" and the content
//	intruder fds              prints the open descriptors, one a line: number, target
//	intruder caps             prints its pid and effective capabilities, without /proc
//	intruder hold             opens /proc/N/fd/* and /proc/N/exe of whoever appears for writing, for ever
//	intruder listen SOCKET    listens on a unix socket, for ever: a service of the host's
//
// It prints what it gets and judges nothing. Linux 5.15. Rejected: shell scripts, which are too slow for the races.
package main
