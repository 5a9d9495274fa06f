package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// heapBytes is about what create allocates; nothing is collected meanwhile.
const heapBytes = 3 << 19

// hugePage is the size and alignment of a huge page of amd64 and of arm64 with pages of 4 KiB.
const hugePage = 2 << 20

// prefault gets the heap's memory in one call. One by one its pages are some 300 faults, and on a virtual machine without
// nested paging each costs twice, once in the guest and once in the host (25 us): as one huge page they are 11 % of a
// container's start less. Before Linux 6.1, and where huge pages are off, the pages are mapped one by one in a single
// call. An error of that means Linux < 5.14 or that the heap lies elsewhere, and costs nothing but the time.
//
// Go 1.26 puts the heap at a random place, across the ends of huge pages: 5 % of a start more. Make builds this program
// as all Go programs were before, with the heap at 0xc000000000. It has no cgo, and is gone after some milliseconds;
// programs that stay and talk to containers keep the random place.
func prefault() {
	here := uintptr(unsafe.Pointer(new([64]byte)))
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, here&^(hugePage-1), hugePage, unix.MADV_COLLAPSE); errno == 0 {
		return
	}
	page := uintptr(unix.Getpagesize())
	unix.Syscall(unix.SYS_MADVISE, here&^(page-1), heapBytes, unix.MADV_POPULATE_WRITE) //nolint:errcheck // see above
}
