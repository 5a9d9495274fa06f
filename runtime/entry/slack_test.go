package entry

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func slack(t *testing.T) int {
	t.Helper()
	ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func TestChildren(t *testing.T) {
	runtime.LockOSThread() // never unlocked: its slack is nobody else's
	const own, was = 70_000, 60_000
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, own, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	for _, tc := range []struct {
		inherited uint64
		want      int
	}{{0, own}, {was, was}} { // a program without the entry, and one with it
		inherited = tc.inherited
		err := Children(func() error {
			if got := slack(t); got != tc.want {
				t.Errorf("inherited %d: a child would get %d, want %d", tc.inherited, got, tc.want)
			}
			return failed
		})
		if !errors.Is(err, failed) {
			t.Errorf("the error is lost: %v", err)
		}
	}
	inherited = 0
}
