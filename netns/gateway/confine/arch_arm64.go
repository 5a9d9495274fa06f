package confine

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// archCalls are what this architecture's runtime uses beside the common ones.
func archCalls() []int { return nil }
