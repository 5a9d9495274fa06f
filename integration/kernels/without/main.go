package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// numbers are the calls that can be taken away.
func numbers() map[string]uint32 {
	return map[string]uint32{
		"clone3":                  unix.SYS_CLONE3,
		"close_range":             unix.SYS_CLOSE_RANGE,
		"faccessat2":              unix.SYS_FACCESSAT2,
		"fsconfig":                unix.SYS_FSCONFIG,
		"fsmount":                 unix.SYS_FSMOUNT,
		"fsopen":                  unix.SYS_FSOPEN,
		"landlock_add_rule":       unix.SYS_LANDLOCK_ADD_RULE,
		"landlock_create_ruleset": unix.SYS_LANDLOCK_CREATE_RULESET,
		"landlock_restrict_self":  unix.SYS_LANDLOCK_RESTRICT_SELF,
		"memfd_create":            unix.SYS_MEMFD_CREATE,
		"mount_setattr":           unix.SYS_MOUNT_SETATTR,
		"move_mount":              unix.SYS_MOVE_MOUNT,
		"open_tree":               unix.SYS_OPEN_TREE,
		"openat2":                 unix.SYS_OPENAT2,
		"pidfd_open":              unix.SYS_PIDFD_OPEN,
		"pidfd_send_signal":       unix.SYS_PIDFD_SEND_SIGNAL,
		"set_mempolicy":           unix.SYS_SET_MEMPOLICY,
		"statx":                   unix.SYS_STATX,
	}
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "without:", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: without CALL[,CALL...] PROGRAM [ARGUMENT...]")
	}
	var filter []unix.SockFilter
	// Only the machine's own numbers: x32 and 32 bit programs are not under test.
	filter = append(filter, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0})
	for name := range strings.SplitSeq(args[0], ",") {
		nr, ok := numbers()[name]
		if !ok {
			return fmt.Errorf("unknown call %q", name)
		}
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: nr},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program, err := exec.LookPath(args[1])
	if err != nil {
		return err
	}
	// A filter is the thread's, and execve keeps the thread that calls it.
	runtime.LockOSThread()
	if err := install(filter); err != nil {
		return fmt.Errorf("install filter: %w", err)
	}
	return unix.Exec(program, args[1:], os.Environ())
}
