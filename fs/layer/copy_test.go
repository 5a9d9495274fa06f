package layer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// stacked mounts an overlay over a folder and returns where.
func stacked(t *testing.T, lower string) string {
	t.Helper()
	dir := lower + "+"
	for _, d := range []string{"merged", "upper", "work"} {
		must(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	merged := filepath.Join(dir, "merged")
	must(t, unix.Mount("overlay", merged, "overlay", 0, "lowerdir="+lower+",upperdir="+dir+"/upper,workdir="+dir+"/work"))
	t.Cleanup(func() { must(t, unix.Unmount(merged, unix.MNT_DETACH)) })
	return merged
}

// copyBench is a workspace on a folder that lies on two overlays, which the kernel does not overlay once more.
func copyBench(t *testing.T, o CopyOptions) (*bench, error) {
	t.Helper()
	b := newBench(t, start)
	b.l.Close()
	lower, err := os.MkdirTemp("/var/tmp", "agentsafe-lower-") //nolint:usetesting // the usual one may be on an overlay or tmpfs
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(lower) })
	first := filepath.Join(lower, "l")
	write(t, first, start)
	must(t, os.Link(first+"/d/x", first+"/d/link"))
	must(t, unix.Setxattr(first+"/a", "user.note", []byte("kept"), 0))
	b.host = stacked(t, stacked(t, first))
	if b.l, err = Create(b.store, "copied"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.l.Close() })
	source, err := os.OpenFile(b.host, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	defer source.Close()
	base, err := b.l.AddWorkspace(source, WorkspaceOptions{Path: b.host, Destination: "/job", Copy: o})
	if err != nil {
		return nil, err
	}
	b.base = base
	t.Cleanup(func() { base.Close() })
	must(t, b.l.save())
	b.hold()
	return b, nil
}

// TestCopiedWorkspace works on a copy where there can be no overlay: the task sees the folder, the host's does not change,
// and promotion knows what the host has changed since.
func TestCopiedWorkspace(t *testing.T) {
	if _, err := copyBench(t, CopyOptions{}); err == nil || !strings.Contains(err.Error(), "stacks two at most") {
		t.Fatalf("without a copy: %v", err)
	}
	if _, err := copyBench(t, CopyOptions{UpTo: 1}); err == nil || !strings.Contains(err.Error(), "nor is the folder copied") {
		t.Fatalf("a folder that is too large: %v", err)
	}
	var notes []string
	b, err := copyBench(t, CopyOptions{UpTo: 1 << 20, Note: func(s string) { notes = append(notes, s) }})
	must(t, err)
	if len(notes) != 1 || !strings.Contains(notes[0], "a copy of the folder") {
		t.Errorf("notes: %q", notes)
	}
	before := content(t, b.host)
	same(t, "the view", content(t, b.view()), before)
	var value [16]byte
	if n, err := unix.Getxattr(b.view()+"/a", "user.note", value[:]); err != nil || string(value[:n]) != "kept" {
		t.Errorf("attribute of the copy: %q %v", value[:max(n, 0)], err)
	}
	tx := b.run(func(d string) {
		write(t, d, map[string]string{"a": "2", "new/f": "n", "d/x": "task"})
		must(t, os.RemoveAll(d+"/keep"))
	})
	if tx.Status != StatusCommitted || tx.Changes != 5 {
		t.Fatalf("%+v", tx)
	}
	must(t, b.l.Undo(1))
	same(t, "the view after undo", content(t, b.view()), before)
	must(t, b.l.Redo(1))
	same(t, "the host", content(t, b.host), before)
	// As after the container's end: what is opened anew lies on the copy, too.
	b.l.views["w0"].Close() //nolint:errcheck // opened for reading
	b.l.views = nil
	b.base.Close()
	view, err := b.l.view(&b.l.Workspaces[0])
	must(t, err)
	if _, err := view.Lstat("new/f"); err != nil {
		t.Error(err)
	}
	write(t, b.host, map[string]string{"d/x": "host's", "keep/late": "host's"})
	plan, err := b.l.PlanPromotion(nil)
	must(t, err)
	var conflict *ConflictError
	if err := b.l.Promote(plan); !errors.As(err, &conflict) || len(conflict.Conflicts) != 2 {
		t.Fatalf("promotion over changes of the host's: %v", err)
	}
	plan, err = b.l.PlanPromotion([]string{"a", "new"})
	must(t, err)
	must(t, b.l.Promote(plan))
	same(t, "promoted", content(t, b.host), map[string]string{
		"a": "2", "new": "dir", "new/f": "n", "d": "dir", "d/x": "host's", "d/y": "y", "d/link": "x", "keep": "dir", "keep/k": "k", "keep/late": "host's",
	})
}
