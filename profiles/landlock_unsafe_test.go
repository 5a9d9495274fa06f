package profiles

import (
	"errors"
	"fmt"
	"unsafe" //nolint:depguard // raw system calls of a test

	"golang.org/x/sys/unix"
)

// landlockABI asks the kernel for its version.
func landlockABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// restrict puts the calling thread under a plan.
func restrict(l *LandlockPlan) error {
	attr := [3]uint64{l.HandledFS, l.HandledNet, l.Scoped}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return fmt.Errorf("create ruleset: %w", errno)
	}
	for _, r := range l.Rules {
		path, err := unix.Open(r.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if r.Optional && errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", r.Path, err)
		}
		beneath := struct {
			access uint64
			fd     int32
		}{r.Access, int32(path)}
		_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, fd, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&beneath)), 0, 0, 0)
		if errno != 0 {
			return fmt.Errorf("add rule %s: %w", r.Path, errno)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("restrict: %w", errno)
	}
	return nil
}
