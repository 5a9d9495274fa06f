package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxFileBytes bounds what is read of a file of observations: what merging keeps, with JSON around it.
const maxFileBytes = 4 * maxMergedBytes

// ReadFile reads observations. The error is os.ErrNotExist if there are none.
func ReadFile(file string) (*Observations, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() > maxFileBytes {
		return nil, fmt.Errorf("%s: too large (%w)", file, errors.Join(err, unix.EFBIG))
	}
	o := NewObservations("", "")
	if err := json.NewDecoder(f).Decode(o); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return o, nil
}

// WriteFile replaces a file of observations, atomically.
func (o *Observations) WriteFile(file string) error {
	data, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Prepare makes the directory of a recording, readable by its owner alone, and finds out whether it can be written to
// before anything runs.
func Prepare(file string) error {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil { //nolint:forbidigo // our own state, not a root file system
		return fmt.Errorf("make directory of recordings: %w", err)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return fmt.Errorf("write to directory of recordings %s: %w", dir, err)
	}
	return nil
}

// Add merges observations into a file, which may not exist yet. Several recorders may do so at a time.
func (o *Observations) Add(file string) error {
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock directory of recordings: %w", err)
	}
	all, err := ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		all, err = NewObservations(o.Home, o.Workspace), nil
	}
	if err != nil {
		return err
	}
	all.Merge(o)
	return all.WriteFile(file)
}
