package main

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// install adds the filter to this thread. Source: seccomp(2), SECCOMP_SET_MODE_FILTER.
func install(filter []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]} //nolint:gosec // some dozens
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return errno
	}
	return nil
}
