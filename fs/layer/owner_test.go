package layer

import (
	"os"
	"path/filepath"
	"testing"
)

// TestAttack_LayersOfAnother has root open layers that an ordinary user has made, and layers that others can write to.
func TestAttack_LayersOfAnother(t *testing.T) {
	store := t.TempDir()
	l, err := Create(store, "c")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	dir := filepath.Join(store, "c")
	for name, change := range map[string]func() error{
		"another's": func() error { return os.Chown(dir, 4242, 4242) },
		"writable":  func() error { return os.Chmod(dir, 0o770) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if l, err := Open(store, "c"); err == nil {
			l.Close()
			t.Errorf("%s: opened", name)
		}
		if err := os.Chown(dir, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err = Open(store, "c")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
