package gateway

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// Event is one line of the log: a decision, or what came of it.
type Event struct {
	Time      time.Time `json:"time"`
	Container string    `json:"container"`
	// Exec and Branch are the command of that container that made the connection or asked the question: [wire.Origin]. Both
	// are missing where that can't be told.
	Exec   string `json:"exec,omitempty"`
	Branch string `json:"branch,omitempty"`
	// Event is dns, connect, packet, request, close, control, credential, limit, start, suppressed or summary.
	Event    string          `json:"event"`
	Decision string          `json:"decision,omitempty"` // allow or refuse
	Name     string          `json:"name,omitempty"`
	Address  string          `json:"address,omitempty"` // that was asked for, or dialled
	Port     uint16          `json:"port,omitempty"`
	Protocol egress.Protocol `json:"protocol,omitempty"`
	Rule     string          `json:"rule,omitempty"`
	Code     egress.Code     `json:"code,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	// Method and Path are of a request; of its query there is only that it has one. Inspected says that it was in TLS.
	Method    string `json:"method,omitempty"`
	Path      string `json:"path,omitempty"`
	Inspected bool   `json:"inspected,omitempty"`
	// In and Out are bytes to and from the task, of a close.
	In     int64 `json:"bytesIn,omitempty"`
	Out    int64 `json:"bytesOut,omitempty"`
	Millis int64 `json:"durationMillis,omitempty"`
	Count  int64 `json:"count,omitempty"`
	// Usage is in a summary: what the name has had while the gateway ran.
	Usage *Usage `json:"usage,omitempty"`
}

func (e Event) decided(d egress.Decision) Event {
	e.Decision, e.Rule, e.Code, e.Reason = "refuse", d.Rule, d.Code, d.Reason
	if d.Allowed {
		e.Decision = "allow"
	}
	return e
}

// by says whose doing the event is, if that is known.
func (e Event) by(who wire.Origin) Event {
	if who.Cgroup != 0 {
		e.Container, e.Exec, e.Branch = who.Container, who.Exec, who.Branch
	}
	return e
}

// Bounds of the log: a task that provokes decisions must not fill the host's disk.
const (
	logLinesPerSecond = 200
	logMaxBytes       = 32 << 20
	refusalsKept      = 64
)

// log writes events as JSON lines. Lines over the rate are counted in a later one, never written; counts stay exact.
type log struct {
	container  string
	mu         sync.Mutex
	out        *os.File
	written    int64
	second     int64
	lines      int
	suppressed int64
	refusals   []Event // the last ones, oldest first
	counts     Counts
	// usage is what each name has had, in all; names beyond maxUsage count together.
	usage map[string]*Usage
}

// Usage is what one name has had of the network.
type Usage struct {
	Connections int64 `json:"connections"`
	Requests    int64 `json:"requests"` // plain HTTP, inspected ones, and those with credentials
	Refused     int64 `json:"refused"`
	BytesIn     int64 `json:"bytesIn"`
	BytesOut    int64 `json:"bytesOut"`
}

const (
	maxUsage   = 1024
	otherNames = "(others)"
)

// count adds an event to what its name has had.
func (l *log) count(e *Event) {
	key := firstOf(e.Name, e.Address)
	if key == "" || e.Event == "dns" && e.Decision != "refuse" || e.Event == "control" {
		return
	}
	u := l.usage[key]
	if u == nil {
		if len(l.usage) >= maxUsage {
			key = otherNames
		}
		if u = l.usage[key]; u == nil {
			if l.usage == nil {
				l.usage = map[string]*Usage{}
			}
			u = &Usage{}
			l.usage[key] = u
		}
	}
	switch {
	case e.Decision == "refuse":
		u.Refused++
	case e.Event == "connect":
		u.Connections++
	case e.Event == "request" || e.Event == "credential":
		u.Requests++
	}
	u.BytesIn += e.In
	u.BytesOut += e.Out
}

// requests returns how many connections and requests a name has had.
func (l *log) requests(name string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.usage[name]
	if u == nil && len(l.usage) > maxUsage {
		u = l.usage[otherNames]
	}
	if u == nil {
		return 0
	}
	return u.Connections + u.Requests
}

// summarise writes what each name has had. It is the end of the log, so it is not bounded by its rate.
func (l *log) summarise() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(l.usage)) {
		l.write(Event{Time: time.Now().UTC(), Container: l.container, Event: "summary", Name: name, Usage: l.usage[name]})
	}
}

func (l *log) usages() map[string]Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]Usage, len(l.usage))
	for name, u := range l.usage {
		out[name] = *u
	}
	return out
}

// Counts sums up everything that was decided.
type Counts struct {
	Allowed  int64 `json:"allowed"`
	Refused  int64 `json:"refused"`
	BytesIn  int64 `json:"bytesIn"`
	BytesOut int64 `json:"bytesOut"`
}

func (l *log) add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Time = time.Now().UTC(); e.Container == "" {
		e.Container = l.container
	}
	switch e.Decision {
	case "allow":
		l.counts.Allowed++
	case "refuse":
		l.counts.Refused++
		if len(l.refusals) == refusalsKept {
			l.refusals = append(l.refusals[:0], l.refusals[1:]...)
		}
		l.refusals = append(l.refusals, e)
	}
	l.count(&e)
	l.counts.BytesIn += e.In
	l.counts.BytesOut += e.Out
	if now := e.Time.Unix(); now != l.second {
		l.second, l.lines = now, 0
		if l.suppressed > 0 {
			l.write(Event{Time: e.Time, Container: l.container, Event: "suppressed", Count: l.suppressed})
			l.suppressed = 0
		}
	}
	if l.lines++; l.lines > logLinesPerSecond || l.written > logMaxBytes {
		l.suppressed++
		return
	}
	l.write(e)
}

// full reports whether a further line of this second would not be written.
func (l *log) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written > logMaxBytes || l.lines >= logLinesPerSecond && time.Now().Unix() == l.second
}

func (l *log) write(e Event) {
	if l.out == nil {
		return
	}
	line, err := json.Marshal(e)
	if err != nil {
		return // Event has nothing that JSON can't hold
	}
	n, _ := l.out.Write(append(line, '\n'))
	l.written += int64(n)
}

func (l *log) snapshot() ([]Event, Counts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Event{}, l.refusals...), l.counts
}
