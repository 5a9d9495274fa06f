package profiles

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "rewrite golden files")

// loadSpec reads a spec as an engine wrote it, from testdata.
func loadSpec(tb testing.TB, name string) *specs.Spec {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		tb.Fatal(err)
	}
	var s specs.Spec
	if err := json.Unmarshal(data, &s); err != nil {
		tb.Fatal(err)
	}
	return &s
}

// hostOf are the facts of a host that has for every bind mount what engines put there: files below /etc, else
// directories.
func hostOf(s *specs.Spec) HostFacts {
	h := HostFacts{Arch: "amd64", LandlockABI: 7, Mounts: make([]MountFacts, len(s.Mounts))}
	h.Root = MountFacts{Path: "/var/lib/docker/overlay2/id/merged", Mode: unix.S_IFDIR | 0o755, Dev: 2, Ino: 2}
	for i := range s.Mounts {
		if m := &s.Mounts[i]; isBind(m) {
			h.Mounts[i] = MountFacts{Path: m.Source, Mode: unix.S_IFDIR | 0o755, Dev: 1, Ino: uint64(1000 + i)}
			if strings.HasPrefix(m.Destination, "/etc/") || strings.HasSuffix(m.Destination, ".containerenv") {
				h.Mounts[i].Mode = unix.S_IFREG | 0o644
			}
		}
	}
	return h
}

func builtin(tb testing.TB, name string) *Profile {
	tb.Helper()
	p, err := Builtin(name)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run the test with -update and read the difference)\n%s", file, firstDifference(string(want), got))
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range w {
		if i >= len(g) || w[i] != g[i] {
			line := "(end)"
			if i < len(g) {
				line = g[i]
			}
			return "want " + w[i] + "\n got " + line
		}
	}
	return "got more lines"
}
