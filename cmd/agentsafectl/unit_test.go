package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]int64{
		"": 0, "1": 1, "512k": 512 << 10, "2G": 2 << 30, "3mb": 3 << 20, "1t": 1 << 40, "100b": 100,
	} {
		if got, err := parseBytes(s); err != nil || got != want {
			t.Errorf("parseBytes(%q) = %d, %v", s, got, err)
		}
	}
	for _, bad := range []string{"0", "-1", "m", "1.5g", "1gg", "9999999999t", "0x10", " 1"} {
		if got, err := parseBytes(bad); err == nil {
			t.Errorf("parseBytes(%q) = %d", bad, got)
		}
	}
}

func TestEnvironmentFlag(t *testing.T) {
	lookup := func(name string) (string, bool) { return "v-" + name, name != "ABSENT" }
	got, err := environment([]string{"A=1", "B", "ABSENT", "C="}, lookup)
	if err != nil || !slices.Equal(got, []string{"A=1", "B=v-B", "C="}) {
		t.Errorf("environment = %q, %v", got, err)
	}
	for _, bad := range []string{"", "=x", "A\x00=1"} {
		if _, err := environment([]string{bad}, lookup); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestExitCode(t *testing.T) {
	start := func(err error) error { return &startError{fmt.Errorf("exec: %w", err)} }
	for want, list := range map[int][]error{
		exitNoCommand: {start(unix.ENOENT), start(unix.ENOTDIR)},
		exitNoExec:    {start(unix.EACCES), start(unix.ENOEXEC), start(unix.EISDIR), start(unix.E2BIG)},
		exitOwn:       {unix.ENOENT, errors.New("x"), start(unix.ENOMEM), start(errors.New("x"))},
	} {
		for _, err := range list {
			if got := exitCode(err); got != want {
				t.Errorf("exitCode(%v) = %d, want %d", err, got, want)
			}
		}
	}
}

func TestCaptureIsBounded(t *testing.T) {
	var c capture
	chunk := []byte(strings.Repeat("x", 1<<20))
	for range maxCaptureBytes>>20 + 2 {
		if n, err := c.Write(chunk); n != len(chunk) || err != nil {
			t.Fatal(n, err)
		}
	}
	if c.kept.Len() != maxCaptureBytes || c.dropped != 2<<20 {
		t.Errorf("kept %d, dropped %d", c.kept.Len(), c.dropped)
	}
}

func TestSweepSparesTheLiving(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "runs")
	alive, err := claimRunDir(parent, "alive")
	if err != nil {
		t.Fatal(err)
	}
	defer alive.remove() //nolint:errcheck // removed with the test's directory
	for _, dead := range []string{"dead", "stuck"} {
		if err := os.MkdirAll(filepath.Join(parent, dead, "rootfs/etc"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	err = sweep(t.Context(), parent, func(_ context.Context, id, path string) error {
		if id == "stuck" {
			return errors.New("its container does not go")
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "does not go") {
		t.Errorf("error = %v", err)
	}
	for name, want := range map[string]bool{"alive": true, "dead": false, "stuck": true} {
		_, err := os.Stat(filepath.Join(parent, name))
		if got := !errors.Is(err, fs.ErrNotExist); got != want {
			t.Errorf("%s is there: %v", name, got)
		}
	}
	if _, err := claimRunDir(parent, "alive"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("claim of a living run: %v", err)
	}
	if err := alive.remove(); err != nil {
		t.Error(err)
	}
	again, err := claimRunDir(parent, "alive")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.remove(); err != nil {
		t.Error(err)
	}
}

// TestAttack_SweepFollowsLinks: a link in the run directory must not lead the
// sweep to other files.
func TestAttack_SweepFollowsLinks(t *testing.T) {
	base := t.TempDir()
	victim := filepath.Join(base, "victim")
	parent := filepath.Join(base, "runs")
	if err := errors.Join(os.Mkdir(victim, 0o700), os.MkdirAll(filepath.Join(parent, "dead"), 0o700),
		os.Symlink(victim, filepath.Join(parent, "link")), os.Symlink(victim, filepath.Join(parent, "dead", "inner"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(victim, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	none := func(context.Context, string, string) error { return nil }
	if err := sweep(t.Context(), parent, none); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(victim, "file")); err != nil {
		t.Errorf("the sweep went through a link: %v", err)
	}
}

func TestMayHold(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	open := func(path string) *os.File {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	for name, tt := range map[string]struct {
		f    *os.File
		want bool
	}{"pipe": {w, true}, "null": {open(os.DevNull), true}, "zero": {open("/dev/zero"), false}, "file": {open(os.Args[0]), false}} {
		if got, err := mayHold(tt.f); err != nil || got != tt.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := mayHold(open(t.TempDir())); err == nil {
		t.Error("a directory was accepted")
	}
	closed, _, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if _, err := mayHold(closed); err == nil {
		t.Error("a closed descriptor was accepted")
	}
}
