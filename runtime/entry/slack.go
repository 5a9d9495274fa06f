package entry

import (
	"runtime"
	"syscall"
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

// StartProcess is syscall.StartProcess by [Children]. It is not os.StartProcess, which in a program's first call clones
// another child to see whether pidfds work, for a millisecond.
func StartProcess(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	err = Children(func() (err error) {
		pid, _, err = syscall.StartProcess(path, argv, attr)
		return err
	})
	return pid, err
}
