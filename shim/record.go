package shim

import (
	"github.com/agentsafe/agentsafe/shim/bundle"
	"github.com/agentsafe/agentsafe/shim/options"
)

// Record is what `delete` needs when the shim is gone; it lies in the bundle.
type Record struct {
	Options options.Options
	// Exit is set once the first process has ended.
	Exit *bundle.Exit
}

// SaveRecord writes a record's options to the bundle. The directory is the engine's, which nobody else can enter.
func SaveRecord(dir string, r *Record) error { return bundle.Save(dir, bundle.OptionsFile, r.Options) }

// LoadRecord reads what a shim wrote to a bundle. A shim that was killed early wrote nothing, or no exit.
func LoadRecord(dir string) (*Record, error) {
	r := &Record{}
	if err := bundle.Load(dir, bundle.OptionsFile, &r.Options); err != nil {
		return nil, err
	}
	var err error
	r.Exit, err = bundle.LoadExit(dir)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// recordExit leaves the exit status where `delete` finds it. Its failure (a full disk) must not hide the exit itself.
func (t *Task) recordExit(p *process) {
	e := &bundle.Exit{PID: p.pid, Status: p.status, At: p.exitedAt}
	if err := bundle.Save(t.bundle, bundle.ExitFile, e); err != nil {
		t.service.cfg.Log.Debug(t.id, err.Error())
	}
}
