package idle

import (
	"runtime/debug"
	"sync"
	"time"
)

// Watch gives memory back when no call has come for the time of Rest, at most once in Pause.
type Watch struct {
	pause time.Duration
	rest  time.Duration

	mu    sync.Mutex
	timer *time.Timer
	last  time.Time
}

// NewWatch makes a watch that is at work from the first call of Called on. rest is how long nobody has called when memory
// is given back, and pause the least time between two such events: whoever polls a shim shall not make it work.
func NewWatch(rest, pause time.Duration) *Watch { return &Watch{rest: rest, pause: pause} }

// Called tells that a call has come. It costs a lock and a timer's reset.
func (w *Watch) Called() {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := max(w.rest, w.pause-time.Since(w.last))
	if w.timer == nil {
		w.timer = time.AfterFunc(in, w.release)
		return
	}
	w.timer.Reset(in)
}

func (w *Watch) release() {
	w.mu.Lock()
	w.last = time.Now()
	w.mu.Unlock()
	debug.FreeOSMemory()
	dropProgram() //nolint:errcheck // what could not be given back stays, and the kernel takes it when it needs it
}
