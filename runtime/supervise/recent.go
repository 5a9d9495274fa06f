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
	next uint64           // the number that the next one gets; the first is 1
	ring []denials.Denial // grows to maxRecent; number n is at (n-1) modulo that
}

func (r *recent) add(d denials.Denial) {
	d = d.Clipped()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = max(r.next, 1)
	if len(r.ring) < maxRecent {
		r.ring = append(r.ring, d)
	} else {
		r.ring[(r.next-1)%maxRecent] = d
	}
	r.next++
}

// since gathers what was refused from a number on: each thing once, with its count.
func (r *recent) since(from uint64) (list []denials.Denial, omitted int, next uint64) {
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
		d := r.ring[(i-1)%maxRecent]
		key := thing{d.Kind, d.What, d.Rule}
		j, seen := at[key]
		switch {
		case seen:
			list[j].Count++
		case len(list) == maxRefusals:
			omitted++
		default:
			at[key], d.Count = len(list), 1
			list = append(list, d)
		}
	}
	return list, omitted, r.next
}

// Refusals implements container.Supervisor.
func (s *Supervisor) Refusals(since uint64) (*wire.Refusals, error) {
	w := s.denials
	if w == nil {
		return &wire.Refusals{}, nil
	}
	if w.kernel != nil && since > 0 {
		time.Sleep(kernelDelay)
	}
	w.drain()
	if since == 0 {
		_, _, next := w.recent.since(^uint64(0))
		return &wire.Refusals{Next: next}, nil
	}
	out := &wire.Refusals{}
	list, omitted, next := w.recent.since(since)
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
