package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Names of files in a bundle.
const (
	// OptionsFile holds the handler's settings, of which Settings is a part.
	OptionsFile = "agentsafe.json"
	// ExitFile holds an Exit once the first process has ended.
	ExitFile = "agentsafe-exit.json"
	// AddressFile holds the address of the container's shim. containerd and older engines read it too.
	AddressFile = "address"
	// PodDir is the directory of a pod's files, in the bundle of a sandbox.
	PodDir = "pod"
)

// DefaultRoot holds the states of all containers of shims; each namespace of containerd has a directory.
const DefaultRoot = "/run/agentsafe-shim-state"

// Settings are those of a handler's settings that say where a container's state is.
type Settings struct {
	Root string `json:"root,omitempty"`
}

// StateDir is the directory of a container's state.
func (s Settings) StateDir(namespace, id string) string {
	root := s.Root
	if root == "" {
		root = DefaultRoot
	}
	return filepath.Join(root, namespace, id)
}

// Exit is the end of a container.
type Exit struct {
	PID    int       `json:"pid"`
	Status int       `json:"status"`
	At     time.Time `json:"at"`
}

// PodShm is where a pod's /dev/shm is mounted in its bundle.
func PodShm(dir string) string { return filepath.Join(dir, PodDir, "shm") }

// Save replaces a file of the bundle, atomically.
func Save(dir, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path+".tmp", data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// Load reads a file of the bundle; into stays as it is if there is none.
func Load(dir, name string, into any) error {
	data, err := os.ReadFile(filepath.Join(dir, name))
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

// LoadExit reads how the container ended; nil if nobody has written it.
func LoadExit(dir string) (*Exit, error) {
	var e Exit
	if err := Load(dir, ExitFile, &e); err != nil || e.At.IsZero() {
		return nil, err
	}
	return &e, nil
}
