package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// heapBytes is about what create allocates; nothing is collected meanwhile.
	heapBytes = 3 << 19
	// zeroBytes is what is used of the zeroed data behind the program's own; most of it is the Go runtime's reserve.
	zeroBytes = 128 << 10
)

// prefault lets the kernel map the pages that create uses, the heap's next ones and the program's, in a few calls. One
// by one they are some 500 page faults, a tenth of a container's start. An error means Linux < 5.14 or that something
// lies elsewhere, and costs nothing but the time.
func prefault() {
	for _, s := range loaded() {
		if s.flags&segmentWritable != 0 {
			populate(s.address, min(s.fileBytes+zeroBytes, s.memoryBytes), unix.MADV_POPULATE_WRITE)
		} else {
			populate(s.address, s.fileBytes, unix.MADV_POPULATE_READ)
		}
	}
	populate(uintptr(unsafe.Pointer(new([64]byte))), heapBytes, unix.MADV_POPULATE_WRITE)
}

func populate(address, size, advice uintptr) {
	begin := address &^ uintptr(unix.Getpagesize()-1)
	unix.Syscall(unix.SYS_MADVISE, begin, address+size-begin, advice) //nolint:errcheck // see prefault
}

// segment is an ELF program header. Source: elf(5), Elf64_Phdr.
type segment struct {
	kind, flags                    uint32
	_, address, _                  uintptr
	fileBytes, memoryBytes, aligns uintptr
}

const (
	segmentLoad     = 1 // PT_LOAD
	segmentWritable = 2 // PF_W
)

// loaded returns the segments of this program that are mapped. It is linked to fixed addresses; were it not, the
// addresses would name nothing.
func loaded() []segment {
	const (
		headers = 3 // AT_PHDR
		count   = 5 // AT_PHNUM
	)
	auxv, err := unix.Auxv()
	if err != nil {
		return nil
	}
	var at, n uintptr
	for _, a := range auxv {
		switch a[0] {
		case headers:
			at = a[1]
		case count:
			n = a[1]
		}
	}
	if at == 0 {
		return nil
	}
	var out []segment
	for _, s := range unsafe.Slice(*(**segment)(unsafe.Pointer(&at)), n) {
		if s.kind == segmentLoad {
			out = append(out, s)
		}
	}
	return out
}
