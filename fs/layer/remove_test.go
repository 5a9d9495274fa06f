package layer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Layers that are being removed are out of sight, and what a crash leaves of them goes with the next collection; a removal
// that goes on is left alone.
func TestRemove_Interrupted(t *testing.T) {
	store := t.TempDir()
	for _, name := range []string{removedPrefix + "left", removedPrefix + "busy"} {
		if err := os.MkdirAll(filepath.Join(store, name, "t/1/w0/upper"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	busy, err := os.Open(filepath.Join(store, removedPrefix+"busy"))
	must(t, err)
	defer busy.Close()
	must(t, unix.Flock(int(busy.Fd()), unix.LOCK_EX))
	if list, err := List(store); err != nil || len(list) != 0 {
		t.Errorf("listed: %+v, %v", list, err)
	}
	if removed, err := Expire(store, 0, nil); err != nil || len(removed) != 0 {
		t.Errorf("expired: %v, %v", removed, err)
	}
	left, err := os.ReadDir(store)
	must(t, err)
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != removedPrefix+"busy" {
		t.Errorf("left: %q", got)
	}
}
