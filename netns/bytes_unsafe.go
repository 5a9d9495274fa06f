package netns

import "unsafe"

// readOnlyBytes is s without a copy: the packet stays in the program's
// read-only pages, of which fewer have to be faulted in. Writing to the result
// would crash; it is only ever handed to sendto.
func readOnlyBytes(s string) []byte {
	return unsafe.Slice(unsafe.StringData(s), len(s))
}
