package thread

import (
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRun_NeverOnTheFirstThread(t *testing.T) {
	old := runtime.GOMAXPROCS(1) // so that goroutines meet the first thread often
	defer runtime.GOMAXPROCS(old)
	var wg sync.WaitGroup
	for range 2000 {
		wg.Go(func() {
			Run(func() {
				if unix.Gettid() == unix.Getpid() {
					t.Error("on the first thread")
				}
			})
		})
	}
	wg.Wait()
}

func TestRun_ThreadEnds(t *testing.T) {
	var tid int
	Run(func() { tid = unix.Gettid() })
	for range 1000 {
		if unix.Tgkill(unix.Getpid(), tid, 0) == unix.ESRCH {
			return
		}
		runtime.Gosched()
		unix.Nanosleep(&unix.Timespec{Nsec: 20e6}, nil) //nolint:errcheck // asked again
	}
	t.Error("the thread goes on")
}
