package harness

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Bare drives a runtime by its command line, without an engine, on a state directory of its own.
type Bare struct {
	Box  *Box
	Peer Peer
	// Root is the state directory, `--root`.
	Root string
	// Global are further flags before the command.
	Global []string
}

// Bare returns a driver for p. When the test ends it deletes by force what is left, and that is no error: tests that
// care look for themselves.
func (b *Box) Bare(t testing.TB, p Peer) *Bare {
	t.Helper()
	d := &Bare{Box: b, Peer: p, Root: filepath.Join(b.TempDir(t), "state")}
	t.Cleanup(func() {
		entries, err := os.ReadDir(d.Root)
		if err != nil {
			return
		}
		for _, e := range entries {
			d.Box.Run(t, Cmd{Args: d.Args("delete", "--force", e.Name()), Dir: b.Dir})
		}
	})
	return d
}

// Args is the command line for the runtime's arguments.
func (d *Bare) Args(args ...string) []string {
	return append(append([]string{d.Peer.Path, "--root", d.Root}, d.Global...), args...)
}

// Do runs the runtime.
func (d *Bare) Do(t testing.TB, args ...string) Result {
	t.Helper()
	return d.Box.Run(t, Cmd{Args: d.Args(args...)})
}

// Must runs the runtime and wants success.
func (d *Bare) Must(t testing.TB, args ...string) string {
	t.Helper()
	return d.Box.MustRun(t, d.Args(args...)...)
}

// RunSpec makes a bundle with mutate and runs it in the foreground.
func (d *Bare) RunSpec(t testing.TB, mutate func(*specs.Spec)) Result {
	t.Helper()
	bundle := d.Box.Bundle(t, mutate)
	return d.Do(t, "run", "--bundle", bundle.Dir, bundle.ID)
}

// State is what `state` prints, by its JSON names.
type State struct {
	Version     string            `json:"ociVersion"`
	ID          string            `json:"id"`
	Status      string            `json:"status"`
	Pid         int               `json:"pid"`
	Bundle      string            `json:"bundle"`
	Rootfs      string            `json:"rootfs"`
	Created     time.Time         `json:"created"`
	Owner       string            `json:"owner"`
	Annotations map[string]string `json:"annotations"`
}

// State asks for the state of id.
func (d *Bare) State(t testing.TB, id string) State {
	t.Helper()
	var s State
	if err := json.Unmarshal([]byte(d.Must(t, "state", id)), &s); err != nil {
		t.Fatalf("state of %s: %v", id, err)
	}
	return s
}

// WaitStatus waits until id has the status.
func (d *Bare) WaitStatus(t testing.TB, id, status string) {
	t.Helper()
	var got string
	for range 500 {
		if got = d.State(t, id).Status; got == status {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("%s is %s, want %s", id, got, status)
}

// Create makes a bundle and creates a container from it, to be deleted when the test ends.
func (d *Bare) Create(t testing.TB, mutate func(*specs.Spec)) Bundle {
	t.Helper()
	bundle := d.Box.Bundle(t, mutate)
	d.Must(t, "create", "--bundle", bundle.Dir, bundle.ID)
	t.Cleanup(func() { d.Do(t, "delete", "--force", bundle.ID) })
	return bundle
}

// Up creates and starts a container that sleeps.
func (d *Bare) Up(t testing.TB, mutate func(*specs.Spec)) Bundle {
	t.Helper()
	bundle := d.Create(t, func(s *specs.Spec) {
		s.Process.Args = []string{"sleep", "1000"}
		if mutate != nil {
			mutate(s)
		}
	})
	d.Must(t, "start", bundle.ID)
	return bundle
}
