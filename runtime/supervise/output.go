package supervise

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/pump"
)

// drainTime is how long output may be on its way when its process has ended: what stays behind in the background may
// hold the pipe open, and a reader may have stopped reading.
const drainTime = 2 * time.Second

// streams are the counted outputs of one process.
type streams struct {
	files   []*os.File // both ends of each, closed by their pump
	drained chan struct{}
}

// drain waits until everything that the process has written has arrived, not for long.
func (st *streams) drain(ctx context.Context) {
	if st == nil {
		return
	}
	select {
	case <-st.drained:
	case <-ctx.Done():
	case <-time.After(drainTime):
	}
}

// Pump implements container.Supervisor.
func (s *Supervisor) Pump(pid int, outs []container.Output) error {
	d, err := s.c.Detail()
	if err != nil {
		return err
	}
	limits := &d.Policy.Profile.Limits
	st := &streams{drained: make(chan struct{})}
	var group sync.WaitGroup
	for _, o := range outs {
		to, err := pump.Destination(o.To)
		if err != nil {
			return fmt.Errorf("pump %s: %w", o.Name, err)
		}
		from, err := pump.Source(o.From)
		if err != nil {
			to.Close()
			return fmt.Errorf("pump %s: %w", o.Name, err)
		}
		st.files = append(st.files, from, to)
		l := &pump.Limit{
			MaxBytes: limits.OutputBytes, Discard: limits.OnOutput == profiles.OutputDiscard,
			Line: fmt.Sprintf("agentsafe: %s ends here: more than %d bytes (limits.outputBytes of profile %q)", o.Name, limits.OutputBytes, s.limits.Profile),
			Cut:  func() { s.outputCut(pid, o.Name, limits.OutputBytes) },
		}
		group.Go(func() {
			if err := l.Run(to, from); err != nil && s.ctx.Err() == nil {
				s.o.Warn(fmt.Sprintf("pump %s: %v", o.Name, err))
			}
		})
	}
	s.group.Go(func() {
		defer context.AfterFunc(s.ctx, st.hangUp)()
		group.Wait()
		close(st.drained)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.execs[pid]; r != nil {
		r.streams = st
	} else if pid == 0 {
		s.streams = st
	}
	return nil
}

// hangUp ends the pumps.
func (st *streams) hangUp() {
	for _, f := range st.files {
		f.Close()
	}
}

func (s *Supervisor) firstStreams() *streams {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// outputCut notes that a stream was ended, in the container's state at once.
func (s *Supervisor) outputCut(pid int, name string, most int64) {
	if err := s.countNow(func(c *container.End) { c.OutputsCut++ }); err != nil {
		s.o.Warn(err.Error())
	}
	if pid == 0 {
		pid = s.c.State().InitPID
	}
	message := fmt.Sprintf("process %d has written more than %d bytes to its %s (limits.outputBytes of profile %q)", pid, most, name, s.limits.Profile)
	s.record(audit.TypeLimit, container.End{Reason: container.EndOutput, Message: message, At: time.Now().UTC()}) //nolint:errcheck // the stream has ended in any case
}
