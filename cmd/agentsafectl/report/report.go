package report

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// Bounds of a report. What is beyond is counted.
const (
	maxExecs     = 1000
	maxHosts     = 500
	maxDenials   = 500
	maxEvents    = 500
	maxDiffLines = 4000 // of all transactions together
)

// Verification is what verifying the log has found.
type Verification struct {
	// State is "intact" or "changed"; Signature "good", "none", "missing" or "bad".
	State     string   `json:"state"`
	Signature string   `json:"signature"`
	KeyID     string   `json:"keyId,omitempty"`
	Note      string   `json:"note,omitempty"`
	Records   uint64   `json:"records"`
	Gaps      int      `json:"gaps"`
	Closed    bool     `json:"closed"`
	Head      string   `json:"head"`
	Findings  []string `json:"findings,omitempty"`
}

// Report is the life of a container.
type Report struct {
	Log          string          `json:"log"`
	Container    audit.Container `json:"container"`
	Runtime      string          `json:"runtime"`
	Argv         []string        `json:"argv"`
	EnvNames     []string        `json:"envNames,omitempty"`
	Cwd          string          `json:"cwd,omitempty"`
	UID          uint32          `json:"uid"`
	GID          uint32          `json:"gid"`
	Verification Verification    `json:"verification"`

	Started time.Time `json:"started,omitzero"`
	// Ended is the time of its exit, or the last one that the log tells; Running that it has no exit.
	Ended time.Time `json:"ended"`
	// Refused says that there never was a container: the profile refuses what was asked for.
	Refused bool           `json:"refused,omitempty"`
	Running bool           `json:"running"`
	Status  *int           `json:"status,omitempty"` // -1 is unknown
	End     *container.End `json:"end,omitempty"`

	Limits profiles.Limits `json:"limits"`
	Peaks  Peaks           `json:"peaks"`
	// Usage is what it used over time; nil if the log does not tell.
	Usage *audit.Usage `json:"usage,omitempty"`

	Execs        []Exec        `json:"execs"`
	Transactions []Transaction `json:"transactions,omitempty"`
	Promotions   []Promotion   `json:"promotions,omitempty"`
	Hosts        []Host        `json:"egress,omitempty"`
	Denials      []Denial      `json:"denials,omitempty"`
	Events       []Event       `json:"events,omitempty"`
	// Matrix is what the profile grants: question and answer.
	Matrix [][2]string `json:"matrix,omitempty"`
	// Omitted counts what the bounds of a report left out, by kind.
	Omitted map[string]int `json:"omitted,omitempty"`
}

// Peaks are what the container used, in bytes and nanoseconds; 0 is unknown.
type Peaks struct {
	MemoryBytes      uint64 `json:"memoryBytes,omitempty"`
	MemoryLimitBytes uint64 `json:"memoryLimitBytes,omitempty"`
	CPUNanoseconds   uint64 `json:"cpuNanoseconds,omitempty"`
	PIDsPeak         uint64 `json:"pidsPeak,omitempty"`
	PIDsLimit        uint64 `json:"pidsLimit,omitempty"`
}

// Exec is a process that an engine started.
type Exec struct {
	ID          string    `json:"id,omitempty"`
	PID         int       `json:"pid"`
	Argv        []string  `json:"argv"`
	Cwd         string    `json:"cwd,omitempty"`
	UID         uint32    `json:"uid"`
	Terminal    bool      `json:"terminal,omitempty"`
	Start       time.Time `json:"start"`
	End         time.Time `json:"end,omitzero"` // zero: the log does not tell
	Status      *int      `json:"status,omitempty"`
	TimedOut    bool      `json:"timedOut,omitempty"`
	Transaction int       `json:"transaction,omitempty"`
	// Shown says that the page has the transaction.
	Shown bool `json:"-"`
}

// Transaction is what an exec changed.
type Transaction struct {
	N         int              `json:"n"`
	Exec      string           `json:"exec,omitempty"`
	PID       int              `json:"pid"`
	Time      time.Time        `json:"time"`
	Status    layer.Status     `json:"status"`
	Exit      *int             `json:"exit,omitempty"`
	Changes   int              `json:"changes"`
	Bytes     int64            `json:"bytes"`
	Digest    string           `json:"digest,omitempty"`
	Reason    string           `json:"reason,omitempty"`
	Conflicts []layer.Conflict `json:"conflicts,omitempty"`
	// Diff is what it changed, as far as the layers still tell.
	Diff []Line `json:"diff,omitempty"`
	// NoDiff says why there is none.
	NoDiff string `json:"noDiff,omitempty"`
}

// Line is a line of a diff; Kind is "head", "hunk", "add", "del" or "".
type Line struct {
	Kind string `json:"kind,omitempty"`
	Text string `json:"text"`
}

// Promotion is a request for one, or what became of it.
type Promotion struct {
	Time    time.Time `json:"time"`
	State   string    `json:"state"`
	By      string    `json:"by,omitempty"`
	Request int       `json:"request,omitempty"`
	Digest  string    `json:"digest,omitempty"`
	Paths   []string  `json:"paths,omitempty"`
	Items   int       `json:"items,omitempty"`
	Message string    `json:"message,omitempty"`
}

// Host is a destination that the task wanted to reach.
type Host struct {
	Name     string `json:"name"`
	Port     uint16 `json:"port,omitempty"`
	Allowed  int64  `json:"allowed"`
	Refused  int64  `json:"refused"`
	BytesIn  int64  `json:"bytesIn"`
	BytesOut int64  `json:"bytesOut"`
	// Rule decided last; Reason says why it was refused.
	Rule   string `json:"rule,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Denial is something that the engine or the task asked for and did not get.
type Denial struct {
	Time time.Time `json:"time"`
	Rule string    `json:"rule,omitempty"`
	Text string    `json:"text"`
}

// Event is a limit that was met, a gap, or what the log tells beside processes.
type Event struct {
	Time time.Time `json:"time"`
	Kind string    `json:"kind"`
	Text string    `json:"text"`
	// Limit says that it is a limit that was met.
	Limit bool `json:"limit,omitempty"`
}

// reader turns records into a report.
type reader struct {
	r     *Report
	open  map[int]int // index of the exec of a pid
	hosts map[hostKey]int
}

type hostKey struct {
	name string
	port uint16
}

// Read makes a report of a log. A record that can't be decoded ends it; what was read until then is in the report.
func Read(dir string, v Verification) (*Report, error) {
	rd := &reader{r: &Report{Log: dir, Verification: v, Omitted: map[string]int{}, Running: true, Execs: []Exec{}}, open: map[int]int{}, hosts: map[hostKey]int{}}
	err := audit.Read(dir, func(rec *audit.Record, _ []byte) error {
		if rd.r.Running { // promotions come later
			rd.r.Ended = rec.Time
		}
		return rd.record(rec)
	})
	if err != nil && v.State == "intact" {
		return nil, err
	}
	if err != nil {
		rd.r.Events = append(rd.r.Events, Event{Time: rd.r.Ended, Kind: "unreadable", Text: err.Error()})
	}
	slices.SortStableFunc(rd.r.Hosts, func(a, b Host) int { return int(b.Refused - a.Refused) })
	rd.join()
	return rd.r, nil
}

// room reports whether a list has room for one more of its kind, and counts what has none.
func (rd *reader) room(kind string, n, most int) bool {
	if n < most {
		return true
	}
	rd.r.Omitted[kind]++
	return false
}

// join tells execs and transactions of each other.
func (rd *reader) join() {
	for i := range rd.r.Transactions {
		t := &rd.r.Transactions[i]
		for j := range rd.r.Execs {
			if e := &rd.r.Execs[j]; e.PID == t.PID && !e.Start.After(t.Time) && e.Transaction == 0 {
				e.Transaction = t.N
				break
			}
		}
	}
	if len(rd.r.Omitted) == 0 {
		rd.r.Omitted = nil
	}
}

// decode reads a record's data; false if it is not what its type says.
func decode(rec *audit.Record, v any) bool { return json.Unmarshal(rec.Data, v) == nil }
