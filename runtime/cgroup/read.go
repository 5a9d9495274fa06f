package cgroup

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
)

// readUint reads a file with one number.
func readUint(dir, file string) (uint64, error) {
	text, err := cgroups.ReadFile(dir, file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse %s/%s: %w", dir, file, err)
	}
	return n, nil
}

// readKey reads the number beside key in a file of "key number" lines; 0 if it isn't there.
func readKey(dir, file, key string) (uint64, error) {
	text, err := cgroups.ReadFile(dir, file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, key+" ")
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse %s/%s: %w", dir, file, err)
		}
		return n, nil
	}
	return 0, nil
}

// readKeys reads a file of "key number" lines. Lines of another form are left out.
func readKeys(dir, file string) (map[string]uint64, error) {
	text, err := cgroups.ReadFile(dir, file)
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		key, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(rest, 10, 64); err == nil {
			out[key] = n
		}
	}
	return out, nil
}

func splitFields(b []byte) []string { return strings.Fields(string(b)) }
