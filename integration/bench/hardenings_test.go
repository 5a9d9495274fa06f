package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
	"github.com/agentsafe/agentsafe/profiles/profilefile"
)

// TestHardenings: what is taken out is there once, and what is added is a profile's.
func TestHardenings(t *testing.T) {
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hardenings() {
		if h.file == "" {
			text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: x}\nextends: agent\n" + h.fields + "\n"
			if _, err := profilefile.Parse(strings.NewReader(text), "x.yaml"); err != nil {
				t.Errorf("%s: %v", h.name, err)
			}
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, h.file))
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range h.out {
			if n := strings.Count(string(source), x[0]); n != 1 {
				t.Errorf("%s: %s has %q %d times, want it once", h.name, h.file, x[0], n)
			}
		}
	}
}

func TestSpread(t *testing.T) {
	var in []time.Duration
	for i := range 100 {
		in = append(in, time.Duration((i*37)%100)*time.Millisecond)
	}
	if got := newSpread(in); got != (spread{50, 40, 60, 100}) {
		t.Errorf("%+v", got)
	}
	if got := newSpread([]time.Duration{time.Millisecond}); got != (spread{1, 1, 1, 1}) {
		t.Errorf("one run: %+v", got)
	}
}
