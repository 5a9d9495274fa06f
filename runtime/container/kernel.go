package container

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// ExplainKernel adds to an error that comes of a missing system call which calls are missing, and since when Linux has
// them. Other errors are returned as they are. It asks the kernel, which only a failure is worth.
func ExplainKernel(err error) error {
	if !errors.Is(err, unix.ENOSYS) {
		return err
	}
	missing := missingCalls()
	if len(missing) == 0 {
		return err
	}
	return fmt.Errorf("%w: this kernel, or a filter around this process, does not have %s; agentsafe needs Linux 5.15",
		err, strings.Join(missing, ", "))
}

// missingCalls tries each call that agentsafe can't do without, with arguments that do nothing: only a call that does
// not exist answers ENOSYS to them.
func missingCalls() []string {
	const bad = ^uintptr(0) // a descriptor that is none
	var out []string
	for _, c := range []struct {
		name, since string
		number      uintptr
		args        [5]uintptr
	}{
		{"memfd_create", "3.17", unix.SYS_MEMFD_CREATE, [5]uintptr{}},
		{"seccomp", "3.17", unix.SYS_SECCOMP, [5]uintptr{bad}},
		{"statx", "4.11", unix.SYS_STATX, [5]uintptr{bad}},
		{"pidfd_send_signal", "5.1", unix.SYS_PIDFD_SEND_SIGNAL, [5]uintptr{bad}},
		{"open_tree", "5.2", unix.SYS_OPEN_TREE, [5]uintptr{bad}},
		{"move_mount", "5.2", unix.SYS_MOVE_MOUNT, [5]uintptr{bad, 0, bad}},
		{"fsopen", "5.2", unix.SYS_FSOPEN, [5]uintptr{}},
		{"fsconfig", "5.2", unix.SYS_FSCONFIG, [5]uintptr{bad}},
		{"fsmount", "5.2", unix.SYS_FSMOUNT, [5]uintptr{bad}},
		{"pidfd_open", "5.3", unix.SYS_PIDFD_OPEN, [5]uintptr{bad}},
		{"openat2", "5.6", unix.SYS_OPENAT2, [5]uintptr{bad}},
		{"faccessat2", "5.8", unix.SYS_FACCESSAT2, [5]uintptr{bad}},
		{"close_range", "5.9", unix.SYS_CLOSE_RANGE, [5]uintptr{1, 0}},
		{"mount_setattr", "5.12", unix.SYS_MOUNT_SETATTR, [5]uintptr{bad}},
	} {
		_, _, errno := unix.Syscall6(c.number, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], 0)
		if errno == unix.ENOSYS {
			out = append(out, fmt.Sprintf("%s(2) (Linux %s)", c.name, c.since))
		}
	}
	return out
}
