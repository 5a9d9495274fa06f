package idle

import (
	"sync"
	"time"
)

// Unused tells when no call has been under way for a time: of a shim that was started and then forgotten.
type Unused struct {
	after time.Duration
	tell  func()

	mu      sync.Mutex
	running int
	timer   *time.Timer
}

// NewUnused makes one that calls tell whenever no call has run for that time, beginning now, on a goroutine of its own.
func NewUnused(after time.Duration, tell func()) *Unused {
	u := &Unused{after: after, tell: tell}
	u.timer = time.AfterFunc(after, u.fire)
	return u
}

// Call is to be called when a call begins; what it returns, when the call has been answered.
func (u *Unused) Call() (end func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running++
	u.timer.Stop()
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.running--; u.running == 0 {
			u.timer.Reset(u.after)
		}
	}
}

func (u *Unused) fire() {
	u.mu.Lock()
	running := u.running
	u.mu.Unlock()
	if running == 0 {
		u.tell()
	}
}
