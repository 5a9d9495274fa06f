package main

// stackBytes is more than the commands use of the first goroutine's stack.
const stackBytes = 32 << 10

// growStack makes the goroutine's stack as large as it will have to be while there is nothing on it. By itself it doubles
// from 8 KiB on in the middle of the work, and each time the runtime unwinds and copies what is there, over cold pages of
// its tables. The frame is what grows the stack; the branch, never taken, keeps it from being cleared.
//
//go:noinline
func growStack(never bool) byte {
	if never {
		var room [stackBytes]byte
		return fill(&room)
	}
	return 0
}

//go:noinline
func fill(room *[stackBytes]byte) byte {
	for i := range room {
		room[i] = byte(i)
	}
	return room[len(room)/2]
}
