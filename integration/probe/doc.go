// Probe runs inside containers and says what it finds there: which system calls answer with which errno, which
// capabilities and files it has, which addresses it reaches. The integration tests build it statically, put it into
// the busybox image as /bin/probe, and compare its reports between runtimes.
//
//	probe report              JSON: process attributes, file descriptors, the errno of each call of a table
//	probe access PATH...      a line per path: what opening it for reading, for writing, and executing it gives
//	probe landlock            the kernel's Landlock ABI, 0 if there is none
//	probe dial NETWORK ADDR   connects ("tcp") or sends and waits for an answer ("udp"); "ok" or the errno
//	probe get URL             the body of a plain HTTP answer
//	probe serve ADDR WORD     answers every HTTP request at ADDR, and every datagram, with WORD, until killed
//
// Calls are made with arguments that a kernel which lets them through refuses with an errno of its own (EFAULT, EBADF),
// so that the report tells a filter's answer from the kernel's, and that do no harm if they succeed. It refuses to
// judge: what is right is for the tests to say. Linux 5.15, amd64 and arm64. Rejected: shell and busybox applets, which
// hide the errno, and whose static resolver crashes.
package main
