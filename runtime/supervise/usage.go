package supervise

import (
	"sync"
	"time"

	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
)

// A series begins with a point every usageEvery and never has more than usagePoints: when there would be, two become one.
// So a container that lives for a day costs some twenty times as many readings as one of twelve seconds, and its log as
// many bytes.
const (
	usageEvery  = 50 * time.Millisecond
	usagePoints = 240
)

// usage is what a container used over time.
type usage struct {
	began time.Time // with its monotonic reading
	end   chan struct{}
	once  sync.Once

	mu     sync.Mutex
	meter  *cgroup.Meter // nil once it is closed
	series series
}

// series is the part of it that needs no kernel: a point for each span of time.
type series struct {
	every  time.Duration
	points []cgroup.Use
}

// add takes in what was read at a time since the beginning. A point has the most memory and processes that were seen in
// its span, and the processor time until its end; spans in which nobody looked repeat what was known last.
func (s *series) add(at time.Duration, u cgroup.Use) {
	for at/s.every >= usagePoints {
		s.halve()
	}
	i := int(at / s.every)
	for len(s.points) < i {
		var last cgroup.Use
		if n := len(s.points); n > 0 {
			last = s.points[n-1]
		}
		s.points = append(s.points, last)
	}
	if i == len(s.points) {
		s.points = append(s.points, u)
		return
	}
	s.points[i] = join(s.points[i], u)
}

// halve makes one point of two.
func (s *series) halve() {
	s.every *= 2
	half := s.points[:0]
	for i := 0; i < len(s.points); i += 2 {
		p := s.points[i]
		if i+1 < len(s.points) {
			p = join(p, s.points[i+1])
		}
		half = append(half, p)
	}
	s.points = half
}

func join(a, b cgroup.Use) cgroup.Use {
	return cgroup.Use{MemoryBytes: max(a.MemoryBytes, b.MemoryBytes), CPU: max(a.CPU, b.CPU), PIDs: max(a.PIDs, b.PIDs)}
}

// record is the series as the evidence has it.
func (s *series) record() *audit.Usage {
	if len(s.points) == 0 {
		return nil
	}
	out := &audit.Usage{EveryMillis: s.every.Milliseconds()}
	for _, p := range s.points {
		out.MemoryBytes = append(out.MemoryBytes, p.MemoryBytes)
		out.CPUMillis = append(out.CPUMillis, p.CPU.Milliseconds())
		out.PIDs = append(out.PIDs, p.PIDs)
	}
	return out
}

// watchUsage begins a series. A container without cgroups, an ordinary user's, has none.
func (s *Supervisor) watchUsage() {
	if s.evidence == nil {
		return
	}
	meter, err := s.c.OpenMeter()
	if err != nil {
		return
	}
	u := &usage{meter: meter, began: time.Now(), end: make(chan struct{}), series: series{every: usageEvery}}
	s.mu.Lock()
	s.usage = u
	s.mu.Unlock()
	s.group.Go(func() {
		defer u.close()
		timer := time.NewTimer(usageEvery)
		defer timer.Stop()
		for {
			wait, ok := u.read()
			if !ok {
				return
			}
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-u.end:
				return
			case <-s.ctx.Done():
				return
			}
		}
	})
}

// read adds a point, and says when the next one is due; false once the container's group is gone.
func (u *usage) read() (time.Duration, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.meter == nil {
		return 0, false
	}
	now, err := u.meter.Read()
	if err != nil {
		return 0, false
	}
	at := time.Since(u.began)
	u.series.add(at, now)
	return u.series.every - at%u.series.every, true
}

func (u *usage) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.meter.Close()
	u.meter = nil
}

// stop ends the series and returns it; nil if there is none.
func (u *usage) stop() *audit.Usage {
	if u == nil {
		return nil
	}
	u.read() // what was used last; its answer is about a next time
	u.once.Do(func() { close(u.end) })
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.series.record()
}
