package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Go runs f in a goroutine on a thread that nothing else runs on, before or after; never on the process's first one.
func Go(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f() // never unlocked: the thread ends with its goroutine
			return
		}
		// Held, so that the other goroutine gets another thread.
		defer runtime.UnlockOSThread()
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked, as above
			f()
		}()
		<-done
	}()
}

// Run is Go, and waits for f.
func Run(f func()) {
	done := make(chan struct{})
	Go(func() {
		defer close(done)
		f()
	})
	<-done
}
