package replace

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Readers see the old or the new content, never a part.
func TestFile_Atomic(t *testing.T) {
	dir := openTemp(t)
	texts := []string{strings.Repeat("a", 10000), strings.Repeat("b", 20000)}
	if err := File(dir, "f", []byte(texts[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				if err := File(dir, "f", []byte(texts[i%2]), 0o600); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for range 500 {
		got, err := os.ReadFile(filepath.Join(dir.Name(), "f"))
		if err != nil || string(got) != texts[0] && string(got) != texts[1] {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	close(stop)
	wg.Wait()
	// A symlink in its place is replaced, not followed.
	victim := filepath.Join(dir.Name(), "victim")
	if err := errors.Join(os.WriteFile(victim, []byte("v"), 0o600), os.Remove(filepath.Join(dir.Name(), "f")),
		os.Symlink("victim", filepath.Join(dir.Name(), "f")), os.Symlink("victim", filepath.Join(dir.Name(), ".f.tmp"))); err != nil {
		t.Fatal(err)
	}
	if err := File(dir, "f", []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(victim); string(got) != "v" {
		t.Errorf("the symlink's target was written: %q", got)
	}
}

// A full disk: an error, the old content, and no draft.
func TestFile_DiskFull(t *testing.T) {
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=16k,mode=700"); err != nil {
		t.Skip("probe mount tmpfs: " + err.Error())
	}
	defer unix.Unmount(mount, unix.MNT_DETACH)
	dir, err := os.Open(mount)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := File(dir, "f", []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := File(dir, "f", make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
	if got, err := os.ReadFile(filepath.Join(mount, "f")); err != nil || string(got) != "old" {
		t.Errorf("content %q, %v", got, err)
	}
	if names, _ := os.ReadDir(mount); len(names) != 1 {
		t.Errorf("left: %v", names)
	}
}

func openTemp(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
