package initproc

import (
	"sync"

	"golang.org/x/sys/unix"
)

var landlockABI = sync.OnceValue(func() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi) //nolint:gosec // a small number
})

// LandlockABI returns the version of Landlock that the kernel has, 0 if it has none or it is disabled at boot.
// Source: landlock_create_ruleset(2), LANDLOCK_CREATE_RULESET_VERSION.
func LandlockABI() int { return landlockABI() }
