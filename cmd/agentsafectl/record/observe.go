package record

import (
	"slices"
	"strings"
)

// Observations are what was seen of one run or several; they survive JSON.
type Observations struct {
	// Home and Workspace are the directories that the run had as these.
	Home      string   `json:"home"`
	Workspace string   `json:"workspace"`
	Commands  []string `json:"commands"`
	// Reads, Writes and Executes count files by their real paths.
	Reads    map[string]int `json:"reads"`
	Writes   map[string]int `json:"writes"`
	Executes map[string]int `json:"executes"`
	// Calls are system calls that the built-in list refuses.
	Calls map[string]int `json:"calls"`
	// Names are names that were looked up, Addresses where was connected to beyond this host.
	Names     map[string]int `json:"names"`
	Addresses map[string]int `json:"addresses"`
	// Dropped counts what did not fit: a run that opens millions of files must not fill the recorder's memory.
	Dropped int `json:"dropped,omitempty"`
	// Processes is the largest number of threads at a time, MaxRSSBytes the largest process.
	Processes   int   `json:"processes"`
	MaxRSSBytes int64 `json:"maxRSSBytes"`
}

// NewObservations are those of a run that has not begun.
func NewObservations(home, workspace string) *Observations {
	return &Observations{
		Home: home, Workspace: workspace, Reads: map[string]int{}, Writes: map[string]int{}, Executes: map[string]int{},
		Calls: map[string]int{}, Names: map[string]int{}, Addresses: map[string]int{},
	}
}

// Bounds of what is kept.
const (
	maxCommands     = 100
	maxCommandBytes = 4096
	maxMergedBytes  = 4 * maxKeptBytes
)

// Merge adds what another run has seen. Where the runs had different homes or workspaces, none of the two is one: what
// is below them is then named by its path.
func (o *Observations) Merge(more *Observations) {
	if len(o.Commands) == 0 {
		o.Home, o.Workspace = more.Home, more.Workspace
	}
	if o.Home != more.Home {
		o.Home = ""
	}
	if o.Workspace != more.Workspace {
		o.Workspace = ""
	}
	for _, c := range more.Commands {
		if len(o.Commands) < maxCommands && !slices.Contains(o.Commands, c) {
			o.Commands = append(o.Commands, c)
		}
	}
	room := maxMergedBytes - o.bytes()
	for i, into := range o.counts() {
		for k, n := range more.counts()[i] {
			if into[k] == 0 {
				if room < len(k) {
					o.Dropped++
					continue
				}
				room -= len(k)
			}
			into[k] += n
		}
	}
	o.Dropped += more.Dropped
	o.Processes = max(o.Processes, more.Processes)
	o.MaxRSSBytes = max(o.MaxRSSBytes, more.MaxRSSBytes)
}

// SetCommand says what the run was.
func (o *Observations) SetCommand(args []string) {
	text := strings.Join(args, " ")
	if len(text) > maxCommandBytes {
		text = text[:maxCommandBytes] + "..."
	}
	o.Commands = []string{text}
}

func (o *Observations) counts() []map[string]int {
	return []map[string]int{o.Reads, o.Writes, o.Executes, o.Calls, o.Names, o.Addresses}
}

func (o *Observations) bytes() (n int) {
	for _, m := range o.counts() {
		for k := range m {
			n += len(k)
		}
	}
	return n
}

type kind int

const (
	kindRead kind = iota
	kindWrite
	kindExecute
)
