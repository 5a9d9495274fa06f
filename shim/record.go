package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/agentsafe/agentsafe/shim/options"
)

// Record is what `delete` needs when the shim is gone; it lies in the bundle.
type Record struct {
	Options options.Options `json:"options"`
	// Exit is set once the first process has ended.
	Exit *Exit `json:"exit,omitempty"`
}

// Exit is the end of a container.
type Exit struct {
	PID    int       `json:"pid"`
	Status int       `json:"status"`
	At     time.Time `json:"at"`
}

const (
	recordFile = "agentsafe.json"
	exitFile   = "agentsafe-exit.json"
)

// SaveRecord writes a record to the bundle. The directory is the engine's, which nobody else can enter.
func SaveRecord(bundle string, r *Record) error { return save(bundle, recordFile, r.Options) }

func save(bundle, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	path := filepath.Join(bundle, name)
	if err := os.WriteFile(path+".tmp", data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// LoadRecord reads what a shim wrote to a bundle. A shim that was killed early wrote nothing, or no exit.
func LoadRecord(bundle string) (*Record, error) {
	r := &Record{}
	if err := load(bundle, recordFile, &r.Options); err != nil {
		return nil, err
	}
	var e Exit
	if err := load(bundle, exitFile, &e); err != nil {
		return nil, err
	}
	if !e.At.IsZero() {
		r.Exit = &e
	}
	return r, nil
}

func load(bundle, name string, into any) error {
	data, err := os.ReadFile(filepath.Join(bundle, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// recordExit leaves the exit status where `delete` finds it. Its failure (a full disk) must not hide the exit itself.
func (t *Task) recordExit(p *process) {
	if err := save(t.bundle, exitFile, &Exit{PID: p.pid, Status: p.status, At: p.exitedAt}); err != nil {
		t.service.cfg.Log.Debug(t.id, err.Error())
	}
}
