package initproc

import (
	"bytes"
	"sync"
	"unsafe"
)

// interpreterAddress returns where the interpreter's code begins in this program's text.
func interpreterAddress() uintptr

// interpreterMaxBytes bounds the search for the end marker; the code is some 300 bytes.
const interpreterMaxBytes = 2048

// interpreterCode returns the interpreter's machine code: the bytes from its entry to the marker behind its last
// instruction. Text is read-only, lives as long as the program and is never moved, so a view of it is safe.
//
//nolint:gochecknoglobals // computed once, never written again
var interpreterCode = sync.OnceValue(func() []byte {
	text := unsafe.Slice((*byte)(textPointer(interpreterAddress())), interpreterMaxBytes)
	end := bytes.Index(text, []byte("agent-vm"))
	if end < 0 {
		return nil
	}
	return text[:end:end]
})

// textPointer turns a code address into a pointer. The address points outside the heap, so the collector has no say.
func textPointer(addr uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&addr))
}
