package layer

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setThreadGroups replaces the supplementary groups of the calling thread alone; unix.Setgroups changes every thread.
func setThreadGroups(groups []uint32) error {
	//nolint:gosec // the kernel copies the array during the call
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
		return errno
	}
	return nil
}
