package signals

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// handlerAddress and restorerAddress return where the code of handler_*.s begins.
func handlerAddress() uintptr

func restorerAddress() uintptr

// sigaction is the kernel's struct sigaction. Source: sigaction(2), "C library/kernel differences".
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const (
	saRestart  = 0x10000000
	saOnStack  = 0x08000000
	saRestorer = 0x04000000
)

// redirect installs the handler. It runs on the Go runtime's stack for signals, with all others blocked.
func redirect(s unix.Signal) error {
	sa := sigaction{handler: handlerAddress(), flags: saRestart | saOnStack, mask: ^uint64(0)}
	if r := restorerAddress(); r != 0 {
		sa.flags, sa.restorer = sa.flags|saRestorer, r
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&sa)), 0, unsafe.Sizeof(sa.mask), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
