package container

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// WarnLog is where what a profile would have refused is kept, one JSON object a line (a [Warning]), if the profile is
// not enforced: engines throw the log of a runtime away that has succeeded. A file that has grown to 16 MiB becomes
// WarnLog.1.
const WarnLog = "/var/lib/agentsafe/warnings.jsonl"

const maxWarnLogBytes = 16 << 20

// Warning is one line of [WarnLog].
type Warning struct {
	Time    time.Time `json:"time"`
	ID      string    `json:"id"`
	Root    string    `json:"root"`
	Profile string    `json:"profile"`
	Rule    string    `json:"rule"`
	Text    string    `json:"text"`
}

// keepWarnings appends the notes about a container whose profile is not enforced. A log that can't be written keeps
// nothing from running: nothing is enforced either way.
func (r *Runtime) keepWarnings(id, profile string, notes []profiles.Note) {
	if err := appendWarnings(r.warnLog(), r.opts.Root, id, profile, notes); err != nil {
		r.opts.Warn(err.Error())
	}
}

func (r *Runtime) warnLog() string {
	if r.opts.WarnLog != "" {
		return r.opts.WarnLog
	}
	return WarnLog
}

func appendWarnings(name, root, id, profile string, notes []profiles.Note) error {
	var lines []byte
	for _, n := range notes {
		if n.Routine {
			continue
		}
		line, err := json.Marshal(Warning{time.Now().UTC(), id, root, profile, n.Rule, n.Text})
		if err != nil {
			return fmt.Errorf("encode warning: %w", err)
		}
		lines = append(append(lines, line...), '\n')
	}
	if len(lines) == 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil { //nolint:forbidigo // our own state, not a root file system
		return fmt.Errorf("log warnings: %w", err)
	}
	var st unix.Stat_t
	if unix.Lstat(name, &st) == nil && st.Size > maxWarnLogBytes {
		if err := os.Rename(name, name+".1"); err != nil {
			return fmt.Errorf("log warnings: %w", err)
		}
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("log warnings: %w", err)
	}
	defer f.Close()
	// One write: lines of two containers do not mix.
	if _, err := f.Write(lines); err != nil {
		return fmt.Errorf("log warnings: %w", err)
	}
	return nil
}
