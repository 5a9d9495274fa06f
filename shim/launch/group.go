package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// groupAnnotations put containers with the same value into one shim; the first that is present counts.
// Source: containerd-shim-runc-v2, manager_linux.go.
func groupAnnotations() []string {
	return []string{"io.containerd.agentsafe.v2.group", "io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"}
}

const (
	maxSpecBytes  = 16 << 20
	maxGroupBytes = 1 << 10
)

// group finds the group of the container whose bundle is dir; id if it is in none. A sandbox of the sandbox API has no
// config.json.
func group(dir, id string) (string, error) {
	f, err := os.OpenFile(filepath.Join(dir, "config.json"), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return id, nil
	}
	if err != nil {
		return "", fmt.Errorf("open config.json: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSpecBytes+1))
	if err != nil {
		return "", fmt.Errorf("read config.json: %w", err)
	}
	if len(data) > maxSpecBytes {
		return "", fmt.Errorf("config.json has more than %d bytes", maxSpecBytes)
	}
	return groupOf(data, id)
}

func groupOf(config []byte, id string) (string, error) {
	// Most containers are in no group, and reading all of a spec for that costs as much as the rest of start.
	mentioned := false
	for _, a := range groupAnnotations() {
		mentioned = mentioned || bytes.Contains(config, []byte(a))
	}
	if !mentioned {
		return id, nil
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(config, &spec); err != nil {
		return "", fmt.Errorf("read config.json: %w", err)
	}
	for _, a := range groupAnnotations() {
		v, ok := spec.Annotations[a]
		switch {
		case !ok || v == "":
		case len(v) > maxGroupBytes:
			return "", fmt.Errorf("annotation %s has %d bytes, at most %d are taken", a, len(v), maxGroupBytes)
		default:
			return v, nil
		}
	}
	return id, nil
}
