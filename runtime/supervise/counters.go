package supervise

import (
	"fmt"
	"strings"
	"time"

	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// noteCounters adds to the end what the kernel's own limits have done. It says OOM only if nothing else has ended the
// container, and a kill is there.
func (s *Supervisor) noteCounters() {
	oom, err := s.c.OOMKills()
	if err != nil {
		oom = 0 // without a memory cgroup there are none
	}
	refused, err := s.c.PIDsRefused()
	if err != nil {
		refused = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.OOMKills, s.counts.PIDsRefused = oom, refused
	if !counted(&s.counts) && s.end == nil {
		return
	}
	if s.end == nil {
		s.end = &container.End{At: time.Now().UTC()}
	}
	s.countInto(s.end)
	if s.end.Reason == "" && oom > 0 {
		s.end.Reason = container.EndOOM
		s.end.Message = oomMessage(oom)
	}
	if refused > 0 {
		s.notes = append(s.notes, s.refusedMessage(s.end))
	}
	if s.end.Reason == "" && len(s.notes) > 0 {
		s.end.Message = strings.Join(s.notes, "; it ")
	}
	if err := s.c.WriteEnd(s.end); err != nil {
		s.o.Warn(err.Error())
	}
}

// recordCounters writes what the kernel's own limits have done into the evidence, a record for each limit: expire has
// written the others, and outputCut those about streams.
func (s *Supervisor) recordCounters(e *container.End) {
	if e == nil {
		return
	}
	if e.OOMKills > 0 {
		oom := container.End{Reason: container.EndOOM, At: e.At, OOMKills: e.OOMKills, Message: oomMessage(e.OOMKills)}
		s.record(audit.TypeLimit, oom) //nolint:errcheck // it has ended, and the log says that something is missing
	}
	if e.PIDsRefused > 0 {
		pids := container.End{Reason: container.EndPIDs, At: e.At, PIDsRefused: e.PIDsRefused, Message: s.refusedMessage(e)}
		s.record(audit.TypeLimit, pids) //nolint:errcheck // likewise
	}
}

func oomMessage(kills uint64) string {
	return fmt.Sprintf("ran out of memory: the kernel has ended %d of its processes", kills)
}

// refusedMessage says by whose limit forks were refused.
func (s *Supervisor) refusedMessage(e *container.End) string {
	rule := "the engine's limit of processes"
	if d, err := s.c.Detail(); err == nil {
		of := d.Policy.Profile
		if most := of.Limits.PIDs; most > 0 && !of.Unrestricted && s.c.PIDsLimit() == uint64(most) {
			rule = fmt.Sprintf("limits.pids of profile %q", of.Name)
		}
	}
	return fmt.Sprintf("could not start %d processes: %d are allowed (%s)", e.PIDsRefused, s.c.PIDsLimit(), rule)
}
