package supervise

import (
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/runtime/cgroup"
)

// TestSeries: a series stays small however long a container lives, keeps its peaks, and its processor time never falls.
func TestSeries(t *testing.T) {
	for _, c := range []struct {
		step, life time.Duration
		every      time.Duration
		least      int
	}{
		{50 * time.Millisecond, time.Second, 50 * time.Millisecond, 20},
		{50 * time.Millisecond, 13 * time.Second, 100 * time.Millisecond, 130},
		{50 * time.Millisecond, time.Hour, 25600 * time.Millisecond, 120},
		{7 * time.Second, 24 * time.Hour, 409600 * time.Millisecond, 120}, // a machine that hardly lets us run
	} {
		s := series{every: usageEvery}
		peakAt := c.life * 2 / 3
		for at := time.Duration(0); at < c.life; at += c.step {
			u := cgroup.Use{MemoryBytes: 100, CPU: at / 2, PIDs: 3}
			if at <= peakAt && peakAt < at+c.step {
				u.MemoryBytes, u.PIDs = 5000, 70
			}
			s.add(at, u)
		}
		if s.every != c.every || len(s.points) > usagePoints || len(s.points) < c.least {
			t.Errorf("%v: %d points of %v, want those of %v", c.life, len(s.points), s.every, c.every)
		}
		peaks := 0
		for i, p := range s.points {
			if i > 0 && p.CPU < s.points[i-1].CPU {
				t.Errorf("%v: point %d has less processor time than the one before", c.life, i)
			}
			if p.MemoryBytes == 5000 && p.PIDs == 70 {
				peaks++
				if begin := time.Duration(i) * s.every; peakAt+c.step < begin || peakAt >= begin+s.every+c.step {
					t.Errorf("%v: the peak at %v is in the point of %v", c.life, peakAt, begin)
				}
			}
		}
		if peaks == 0 {
			t.Errorf("%v: the peak is lost", c.life)
		}
		r := s.record()
		if len(r.MemoryBytes) != len(s.points) || len(r.CPUMillis) != len(s.points) || len(r.PIDs) != len(s.points) || r.EveryMillis != c.every.Milliseconds() {
			t.Errorf("%v: the record is another length: %+v", c.life, r)
		}
	}
	var none *usage
	if none.stop() != nil || (&series{every: usageEvery}).record() != nil {
		t.Error("there is a record of nothing")
	}
}
