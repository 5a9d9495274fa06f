// Package initproc is the container side of a container's life: the program that a cloned child runs until it executes
// the container's own.
//
// # Init is data
//
// A child performs system calls in a fixed order, and little else. So its program is a table of system calls, compiled
// by [PlanCreate] and [PlanExec] from plain data ([Create], [Exec]); [Program.String] prints it. [Spawn] writes the
// table, with an interpreter of some 300 bytes of machine code in front, as a static ELF executable into a sealed memfd,
// and executes that in the new namespaces with the standard library's clone.
//
// What follows from it:
//
//   - no Go runtime, libc, heap or second thread in the child: setns(2) into a user or time namespace just works, a
//     created container that waits for start costs some pages, and the child is up in a fraction of a millisecond
//     (measured: 0.4 ms from clone to the first step, against 2 ms of a re-executed Go binary);
//   - the runtime's own binary is not mapped in the container: /proc/PID/exe is the sealed memfd (CVE-2019-5736);
//   - the child looks nothing up in the image but mount points, by openat2 beneath the root's descriptor.
//
// # The machine
//
// An operation is a system call number, six arguments, and where to go on. Arguments are constants, addresses of data
// in the image, or cells: 32 bits of memory that an earlier result was stored in (descriptors). An errno can be
// tolerated, a result can be expected, eight bytes of memory can be compared. There is no arithmetic and no loop but the
// jumps that the plan wrote. Anything unexpected is reported as (operation, errno) on the sync socket, and the child
// ends. vm_amd64.s and vm_arm64.s are the interpreter.
//
// # What it refuses
//
// The package judges nothing: whoever plans a child has read, checked and hardened the spec. It never opens a path of
// the container from the host's root, and follows no symlink for /proc, /sys, /dev or Landlock rules.
//
// Minimum kernel: 5.15 (openat2, mount_setattr, close_range with CLOSE_RANGE_CLOEXEC, faccessat2).
//
// # Alternatives rejected
//
// Re-executing the binary with a Go init: 2 ms for each create and exec, threads before setns, and C or link-name
// tricks to get into a user namespace. Forking without execve, with Go code in the child: /proc/PID/exe is then the
// host's binary, and any allocation may deadlock. A separate init program in C or assembly: a second artefact to build,
// install, find and protect.
package initproc
