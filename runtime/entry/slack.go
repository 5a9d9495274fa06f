package entry

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Monitor is the slack of the Go runtime's monitor thread in a program that is linked with -E (see the package's
// documentation): what it sleeps of its own when nothing happens.
const Monitor = 10 * time.Millisecond

// inherited is what the program was started with, in nanoseconds; start writes it. 0: start has not run.
var inherited uint64 //nolint:gochecknoglobals // written before there is a heap

// start is the program's entry point: it stores the slack in inherited, sets Monitor, maps the program, and jumps to the
// runtime's. Nothing in Go calls it.
func start() //nolint:unused // by the linker it is

// Inherited is the timer slack that the program was started with, 0 if it was not changed since.
func Inherited() time.Duration { return time.Duration(inherited) } //nolint:gosec // nanoseconds, far below 2^63

// Restore gives the calling thread the slack back that the program was started with. What the thread clones inherits it.
func Restore() {
	if inherited != 0 {
		unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(inherited), 0, 0, 0) //nolint:errcheck // it has no error for a number
	}
}

// Children runs start, which starts a process or executes another program, on a thread that has the slack that the program was started with.
func Children(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	Restore()
	return start()
}
