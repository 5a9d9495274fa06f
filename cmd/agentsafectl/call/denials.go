package call

import (
	"fmt"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

// Denial is something that was refused while a command ran.
type Denial struct {
	// Kind is "network", "syscall", "file", "memory" or "processes".
	Kind string `json:"kind"`
	// What was asked for: a host with its port, a system call, an access and a path. Empty for limits.
	What   string `json:"what,omitempty"`
	Reason string `json:"reason"`
	// Rule of the profile that decided, and what would allow it, as far as they are known.
	Rule  string `json:"rule,omitempty"`
	Allow string `json:"allowed_by,omitempty"`
	Count int    `json:"count"`
}

// mark is where the counters of a container stood when a command began.
type mark struct {
	// since is the supervisor's mark, 0 where nobody listens.
	since        uint64
	oom, refused uint64
}

// measure reads the counters. since is a mark of an earlier command's, 0 for now.
func measure(c *container.Container, since uint64) mark {
	m := mark{since: since}
	m.oom, m.refused = counters(c)
	if since == 0 {
		if r, err := refusals(c, 0, ""); err == nil {
			m.since = r.next
		}
	}
	return m
}

// counters are what the kernel has refused; without a cgroup of that kind, nothing.
func counters(c *container.Container) (oom, refused uint64) {
	oom, err := c.OOMKills()
	if err != nil {
		oom = 0
	}
	if refused, err = c.PIDsRefused(); err != nil {
		refused = 0
	}
	return oom, refused
}

// answer is what a supervisor tells of refusals.
type answer struct {
	list    []Denial
	omitted int
	next    uint64
}

// refusals asks the container's supervisor. One of an older version knows nothing of that.
func refusals(c *container.Container, since uint64, branch string) (*answer, error) {
	s, err := c.Supervisor()
	if err != nil {
		return nil, err
	}
	if s == nil {
		return &answer{}, nil
	}
	r, err := s.Refusals(since, branch)
	if err != nil {
		return nil, err
	}
	out := &answer{next: r.Next, omitted: r.Omitted}
	for _, line := range r.List {
		d, err := denials.ParseLine(line)
		if err != nil {
			return nil, err
		}
		if d.Kind != denials.Network && d.Kind != denials.Syscall && d.Kind != denials.File {
			continue // limits have counters
		}
		why := d.Why
		if why == "" {
			why = "answered with " + d.Answer
		}
		out.list = append(out.list, Denial{
			Kind: string(d.Kind), What: Visible(d.What), Reason: Visible(why), Rule: Visible(d.Rule), Allow: Visible(d.Allow), Count: max(d.Count, 1),
		})
	}
	return out, nil
}

// denials are what has been refused since to the command of a branch, and the mark for what comes later.
func (m mark) denials(c *container.Container, branch string) (out []Denial, next uint64) {
	oom, refused := counters(c)
	if n := oom - m.oom; oom > m.oom {
		out = append(out, Denial{
			Kind: "memory", Reason: "out of memory: the kernel has ended processes", Rule: "limits.memory", Count: int(n), //nolint:gosec // processes fit
		})
	}
	if n := refused - m.refused; refused > m.refused {
		out = append(out, Denial{
			Kind: "processes", Reason: "too many processes: forks were refused", Rule: "limits.pids", Count: int(n), //nolint:gosec // forks fit
		})
	}
	if m.since == 0 {
		return out, 0
	}
	r, err := refusals(c, m.since, branch)
	if err != nil {
		return out, m.since
	}
	out = append(out, r.list...)
	if r.omitted > 0 {
		out = append(out, Denial{Kind: "note", Reason: "more was refused than is listed", Count: r.omitted})
	}
	return out, r.next
}

// String is one line for people.
func (d Denial) String() string {
	s := d.Kind
	if d.What != "" {
		s += ": " + d.What
	}
	s += ": " + d.Reason
	if d.Rule != "" {
		s += " [" + d.Rule + "]"
	}
	return fmt.Sprintf("%s (%d)", s, d.Count)
}
