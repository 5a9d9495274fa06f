// Posixcheck says, line by line, what a file system answers to the calls that programs make: rename, link, unlink, modes,
// times, FIFOs, locks, holes, attributes. It knows no right answers: its output on one mount is compared with that on
// another.
//
//	posixcheck prepare DIR    makes one directory for each check, with files in it
//	posixcheck run DIR        runs every check in its directory, and prints a line for each
//
// Linux 5.15. Rejected: pjdfstest, which needs a compiler and perl in the container and judges by FreeBSD's rules.
package main
