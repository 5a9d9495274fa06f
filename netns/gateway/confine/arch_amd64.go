package confine

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// archCalls are what this architecture's runtime uses beside the common ones.
func archCalls() []int {
	return []int{unix.SYS_EPOLL_WAIT, unix.SYS_POLL, unix.SYS_ARCH_PRCTL, unix.SYS_GETUID}
}
