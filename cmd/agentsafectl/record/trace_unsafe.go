package record

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// syscallInfo is struct ptrace_syscall_info at a seccomp stop or at an entry; at an exit nr is the result, and the
// first byte of args says whether it is an error. Source: linux/ptrace.h.
type syscallInfo struct {
	op      uint8
	_       [3]uint8
	arch    uint32
	_, _    uint64 // instruction and stack pointers
	nr      uint64
	args    [6]uint64
	message uint32
	_       uint32
}

const (
	ptraceSeize          = 0x4206
	ptraceListen         = 0x4208
	ptraceGetSyscallInfo = 0x420e

	infoEntry   = 1
	infoExit    = 2
	infoSeccomp = 3
)

// seize makes this thread the tracer of a process that runs, without stopping it.
func seize(pid, options int) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceSeize, uintptr(pid), 0, uintptr(options), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// release lets a task go that this thread traces, as it is, with a signal.
func release(pid int, sig unix.Signal) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(pid), 0, uintptr(sig), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// signalSender asks who has sent the signal that a task is stopped for, in that task's pid namespace; 0 is somebody
// outside of it, or the kernel.
func signalSender(pid int) (int32, error) {
	var info struct { // the beginning of siginfo_t of a signal of kill(2), on 64-bit machines
		_, _, _, _ int32
		pid        int32
		_          [108]byte
	}
	//nolint:gosec // the kernel writes sizeof(siginfo_t), which is 128 bytes
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGINFO, uintptr(pid), 0, uintptr(unsafe.Pointer(&info)), 0, 0); errno != 0 {
		return 0, errno
	}
	return info.pid, nil
}

// listen leaves a task in its job-control stop, and is told when it goes on.
func listen(pid int) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceListen, uintptr(pid), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// readSyscallInfo asks for the call that a task stopped at.
func readSyscallInfo(pid int) (*syscallInfo, error) {
	var info syscallInfo
	//nolint:gosec // the kernel writes at most the size that it is given
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(pid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return nil, errno
	}
	return &info, nil
}

// installFilter puts a seccomp filter on the calling thread.
func installFilter(program []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]} //nolint:gosec // the compiler bounds it
	//nolint:gosec // the kernel copies the program
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}
