package layer

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/replace"
)

// stateVersion changes when an older agentsafe could not read a layer any more.
const stateVersion = 1

const stateFile = "layer.json"

// State is what layer.json keeps of a container's layers. It is replaced as a whole, by rename, so that it is the truth
// after a crash: whatever was going on stands in Pending and is finished by whoever opens the layers next.
type State struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	// Boot names the run of the kernel in which the layers were made.
	Boot string `json:"boot"`
	// Ended is when the container went away; zero while it exists.
	Ended time.Time `json:"ended,omitzero"`
	// Keep pins the layers against expiry.
	Keep bool `json:"keep,omitempty"`
	// InitPID and InitStart find the container's mount namespace while it runs.
	InitPID      int           `json:"initPid,omitempty"`
	InitStart    uint64        `json:"initStart,omitempty"`
	Workspaces   []Workspace   `json:"workspaces"`
	Transactions []Transaction `json:"transactions,omitempty"`
	// ArchivedTo is the last transaction that history.json counts for; 0 if there is none.
	ArchivedTo  int          `json:"archivedTo,omitempty"`
	Checkpoints []Checkpoint `json:"checkpoints,omitempty"`
	Checks      []Check      `json:"checks,omitempty"`
	Folder      *Folder      `json:"folder,omitempty"`
	Pending     *Pending     `json:"pending,omitempty"`
	// Promoted remembers what promotions wrote, so that the host's file is not taken for somebody else's change.
	Promoted map[string]Stamp `json:"promoted,omitempty"`
}

// Workspace is one folder of the host beneath an overlay.
type Workspace struct {
	Name        string `json:"name"`        // directory of the layer: w0, w1, ...
	Destination string `json:"destination"` // in the container
	Source      string `json:"source"`      // on the host
	Dev         uint64 `json:"dev"`         // identity of the source
	Ino         uint64 `json:"ino"`
	// Since is the clock of the file system, in ns, when the layer began: what the host changed later is a conflict.
	Since int64 `json:"since"`
	// MergedDev identifies the overlay's mount while the container runs.
	MergedDev uint64 `json:"mergedDev,omitempty"`
	// Nested are mount points of the container beneath Destination.
	Nested []string `json:"nested,omitempty"`
	// Copied says that the overlay lies on a copy of the folder.
	Copied bool `json:"copied,omitempty"`
	// Quota, if there is one, says that the layers lie in a file system of their own: an image or, with MemoryDev, the
	// tmpfs that has this number.
	Quota     Quota  `json:"quota,omitzero"`
	MemoryDev uint64 `json:"memoryDev,omitempty"`
}

// InMemory reports whether the layers of the workspace lie in memory.
func (w *Workspace) InMemory() bool { return w.MemoryDev != 0 }

// Status says what became of a transaction.
type Status string

// The statuses.
const (
	StatusOpen      Status = "open"      // its command runs, or has ended and nobody has looked yet
	StatusCommitted Status = "committed" // part of the container's view
	StatusUndone    Status = "undone"    // was part of it
	StatusConflict  Status = "conflict"  // not applied: others had changed the same paths
	StatusDiscarded Status = "discarded" // not applied: by the profile
	StatusRefused   Status = "refused"   // not applied: the layer is not one that agentsafe reads
	StatusFailed    Status = "failed"    // not applied: there was no room, or an error
)

// Transaction is one exec on a layer of its own, or a change that agentsafectl made in the same way.
type Transaction struct {
	N       int       `json:"n"`
	Command []string  `json:"command"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	// Exit is the exit status, nil where nobody could know it.
	Exit   *int   `json:"exit,omitempty"`
	Status Status `json:"status"`
	Commit string `json:"commit,omitempty"` // the profile's rule: always, success, never
	// Since is the clock of the file system, in ns, when the transaction began.
	Since     int64      `json:"since"`
	Changes   int        `json:"changes"`
	Bytes     int64      `json:"bytes"`
	Conflicts []Conflict `json:"conflicts,omitempty"`
	Reason    string     `json:"reason,omitempty"` // why it was refused, or has failed
	// Dropped says that what it wrote is not kept.
	Dropped bool `json:"dropped,omitempty"`
	// PID and PIDStart are its first process; 0 for none.
	PID      int    `json:"pid,omitempty"`
	PIDStart uint64 `json:"pidStart,omitempty"`
	// MountNS names the mount namespace of its processes.
	MountNS string `json:"mountNs,omitempty"`
}

// Conflict is a path that somebody else has changed.
type Conflict struct {
	Workspace string `json:"workspace"` // destination in the container
	Path      string `json:"path"`
	Reason    string `json:"reason"`
}

// Checkpoint is a copy of the layers under a name.
type Checkpoint struct {
	Name  string    `json:"name"`
	Time  time.Time `json:"time"`
	After int       `json:"after"` // the last transaction before it
}

// Pending is an operation that changes a view and is not complete yet.
type Pending struct {
	Op string `json:"op"`
	N  int    `json:"n,omitempty"`
	// Reason is why a commit is taken back.
	Reason string `json:"reason,omitempty"`
	// Promotion is what is being written to the host.
	Promotion *promotion `json:"promotion,omitempty"`
}

// Stamp identifies one state of a file: its inode and the time of its last change, which nobody can set.
type Stamp struct {
	Ino   uint64 `json:"ino"`
	Ctime int64  `json:"ctime"`
}

// Operations that a crash can interrupt.
const (
	opCommit   = "commit"
	opTakeBack = "take back" // of a commit that failed
	opUndo     = "undo"
	opRedo     = "redo"
	opPromote  = "promote"
)

func readState(dir *os.File) (*State, error) {
	fd, err := unix.Openat(int(dir.Fd()), stateFile, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", stateFile, err)
	}
	f := os.NewFile(uintptr(fd), stateFile)
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", stateFile, err)
	}
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("decode %s: %w", stateFile, err)
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("layers of version %d were written by another agentsafe, this one knows version %d", s.Version, stateVersion)
	}
	return &s, nil
}

// writeFile replaces a file in the directory atomically.
func writeFile(dir *os.File, name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return replace.File(dir, name, data, 0o600)
}
