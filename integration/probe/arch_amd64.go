package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// int80 makes a call without arguments by the 32-bit gate and returns eax.
func int80(nr uint32) int32

// archCalls tries the ABIs beside the native one, by which a filter that forgot them is passed.
func archCalls() []call {
	const i386Getpid, x32Bit = 20, 0x40000000
	return []call{
		{"int 0x80 getpid", func() error {
			if r := int80(i386Getpid); r < 0 {
				return syscall.Errno(-r)
			}
			return nil
		}},
		raw("x32 getpid", x32Bit|unix.SYS_GETPID),
		raw("iopl", unix.SYS_IOPL, 3),
		raw("ioperm", unix.SYS_IOPERM, 0, 1, 1),
		raw("modify_ldt", unix.SYS_MODIFY_LDT, 0, badMemory, 8),
	}
}
