package supervise

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/agentsafe/agentsafe/runtime/denials"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// Bounds of what is told about the near past: refusals that are kept, and different ones in an answer.
const (
	maxRecent    = 512
	maxRefusals  = 50
	refusalBytes = wire.MaxBytes / 2
)

// kernelDelay is how long the kernel's report of a refusal may be on its way: its audit messages are sent by a thread of
// its own. One that comes later is in the next answer.
const kernelDelay = 5 * time.Millisecond

// recent are the last refusals in order. The log in the container's sight has each thing at its first, 10th, 100th time:
// it says what is refused, and not what was refused to one command.
type recent struct {
	mu   sync.Mutex
	next uint64    // the number that the next one gets; the first is 1
	ring []refusal // grows to maxRecent; number n is at (n-1) modulo that
	// asked are the branches of the last commands, and the number that was next when each has asked, 0 until then: what
	// comes later of them is told to whoever asks next. A sub-cgroup of another name is the container's own doing.
	asked []asker
}

// refusal is one of them, and the branch of the command that it was refused to; "" if that is not known.
type refusal struct {
	denials.Denial
	branch string
}

type asker struct {
	branch string
	next   uint64
}

// maxAskers bounds the commands that are remembered; more of them than run at once.
const maxAskers = 256

// begins makes the branch of a command known.
func (r *recent) begins(branch string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, asker{branch: branch})
	r.asked = r.asked[max(0, len(r.asked)-maxAskers):]
}

func (r *recent) add(d denials.Denial, branch string) {
	d = d.Clipped()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = max(r.next, 1)
	if len(r.ring) < maxRecent {
		r.ring = append(r.ring, refusal{d, branch})
	} else {
		r.ring[(r.next-1)%maxRecent] = refusal{d, branch}
	}
	r.next++
}

// since gathers what was refused from a number on: each thing once, with its count. Of the refusals of which it is known
// which command they were of, only those of this branch's, and of commands that can't be told any more.
func (r *recent) since(from uint64, branch string) (list []denials.Denial, omitted int, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = max(r.next, 1)
	if from = max(from, 1); r.next > maxRecent && from < r.next-maxRecent {
		omitted, from = int(r.next-maxRecent-from), r.next-maxRecent //nolint:gosec // refusals fit
	}
	type thing struct {
		kind       denials.Kind
		what, rule string
	}
	at := map[thing]int{}
	for i := from; i < r.next; i++ {
		d := &r.ring[(i-1)%maxRecent]
		if branch != "" && !r.concerns(d, i, branch) {
			continue
		}
		key := thing{d.Kind, d.What, d.Rule}
		j, seen := at[key]
		switch {
		case seen:
			list[j].Count++
		case len(list) == maxRefusals:
			omitted++
		default:
			at[key] = len(list)
			list = append(list, d.Denial)
			list[len(list)-1].Count = 1
		}
	}
	for i := range r.asked {
		if a := &r.asked[i]; a.branch == branch {
			a.next = r.next
		}
	}
	return list, omitted, r.next
}

// concerns reports whether refusal i is to be told to the command of a branch. mu is held.
func (r *recent) concerns(d *refusal, i uint64, branch string) bool {
	if d.branch == "" || d.branch == branch {
		return true
	}
	for _, a := range r.asked {
		if a.branch == d.branch {
			return a.next > 0 && i >= a.next // it was reported too late for its own command
		}
	}
	return true
}

// Refusals implements container.Supervisor.
func (s *Supervisor) Refusals(since uint64, branch string) (*wire.Refusals, error) {
	w := s.denials
	if w == nil {
		return &wire.Refusals{}, nil
	}
	if w.kernel != nil && since > 0 {
		time.Sleep(kernelDelay)
	}
	w.drain()
	if since == 0 {
		_, _, next := w.recent.since(^uint64(0), "")
		return &wire.Refusals{Next: next}, nil
	}
	out := &wire.Refusals{}
	list, omitted, next := w.recent.since(since, branch)
	out.Omitted, out.Next = omitted, next
	room := refusalBytes
	for i := range list {
		line, err := json.Marshal(&list[i])
		if err != nil {
			return nil, err
		}
		if room -= len(line); room < 0 {
			out.Omitted++
			continue
		}
		out.List = append(out.List, line)
	}
	return out, nil
}
