package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func TestDamagedState(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(file string, data []byte) error
	}{
		{"empty", func(f string, _ []byte) error { return os.WriteFile(f, nil, 0o600) }},
		{"half written", func(f string, data []byte) error { return os.WriteFile(f, data[:len(data)/2], 0o600) }},
		{"garbage", func(f string, _ []byte) error { return os.WriteFile(f, []byte("\x00\xffgarbage"), 0o600) }},
		{"of another version", func(f string, _ []byte) error {
			return os.WriteFile(f, []byte(`{"version":"99","stateVersion":99}`), 0o600)
		}},
		{"missing", func(f string, _ []byte) error { return os.Remove(f) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, p := harness.Peers(t)
			before := snapshot(t)
			d := box.Bare(t, p)
			damaged, healthy := d.Up(t, nil), d.Up(t, nil)
			file := filepath.Join(d.Root, damaged.ID, "state.json")
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := tc.do(file, data); err != nil {
				t.Fatal(err)
			}
			for _, command := range []string{"state", "start", "pause", "ps"} {
				if r := d.Do(t, command, damaged.ID); r.Exit == 0 || strings.Contains(r.Stderr, "goroutine ") {
					t.Errorf("%s on a damaged state:\n%v", command, r)
				}
			}
			if list := d.Do(t, "list", "--quiet"); !strings.Contains(list.Stdout, healthy.ID) {
				t.Errorf("a damaged state hides the healthy container:\n%v", list)
			}
			d.Must(t, "delete", "--force", damaged.ID)
			d.Must(t, "delete", "--force", healthy.ID)
			nothingLeft(t, p, before, d)
		})
	}
}

// TestKilledDuringCreate ends create at every moment of its life. Whatever it leaves, delete --force cleans, and the id
// is free again.
func TestKilledDuringCreate(t *testing.T) {
	_, p := harness.Peers(t)
	bundle := box.Bundle(t, nil)
	before := snapshot(t)
	d := box.Bare(t, p)
	d.Must(t, "create", "--bundle", bundle.Dir, bundle.ID) // fills the filter cache, and tells how long it takes
	d.Must(t, "delete", "--force", bundle.ID)
	began := time.Now()
	d.Must(t, "create", "--bundle", bundle.Dir, bundle.ID)
	took := time.Since(began)
	d.Must(t, "delete", "--force", bundle.ID)

	const steps = 40
	for i := range steps {
		id := fmt.Sprintf("%s-%d", bundle.ID, i)
		create := box.Start(t, harness.Cmd{Args: d.Args("create", "--bundle", bundle.Dir, id)})
		time.Sleep(took * time.Duration(i) / (steps * 3 / 4)) // the moment is the point of the test
		if err := unix.Kill(create.Pid(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		create.Wait(t)
		d.Must(t, "delete", "--force", id)
		if left := box.Leftovers(before); len(left) > 0 {
			t.Fatalf("killed after %d/%d of create, left after delete --force:\n  %s", i, steps*3/4, strings.Join(left, "\n  "))
		}
	}
	nothingLeft(t, p, before, d)
}

// TestInitKilled has the first process die before start.
func TestInitKilled(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		d := box.Bare(t, p)
		c := d.Create(t, nil)
		if err := unix.Kill(d.State(t, c.ID).Pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		d.WaitStatus(t, c.ID, "stopped")
		start := d.Do(t, "start", c.ID)
		return result(start.Exit != 0, d.Do(t, "delete", c.ID).Exit)
	}, exact(0, "^true\n0\n$"))
}

func TestFullStateDirectory(t *testing.T) {
	for _, options := range []string{"size=4k", "nr_inodes=2"} {
		t.Run(options, func(t *testing.T) {
			_, p := harness.Peers(t)
			bundle := box.Bundle(t, nil)
			root := box.TempDir(t)
			if err := unix.Mount("tmpfs", root, "tmpfs", 0, options+",mode=0700"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(root, 0); err != nil {
					t.Errorf("unmount state directory: %v", err)
				}
			})
			if strings.HasPrefix(options, "size") { // fill what is left, so that not even one page can be written
				if err := os.WriteFile(filepath.Join(root, "filler"), make([]byte, 4096), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			before := snapshot(t)
			d := &harness.Bare{Box: box, Peer: p, Root: root}
			r := d.Do(t, "run", "--bundle", bundle.Dir, bundle.ID)
			if r.Exit == 0 || !strings.Contains(r.Stderr, "no space left on device") {
				t.Errorf("want an error that says the disk is full:\n%v", r)
			}
			if left := box.Leftovers(before); len(left) > 0 {
				t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
			}
			if _, err := os.Stat(filepath.Join(root, bundle.ID)); err == nil {
				t.Error("left in the state directory: the container's")
			}
		})
	}
}

func TestIDInUse(t *testing.T) {
	_, p := harness.Peers(t)
	d := box.Bare(t, p)
	c := d.Up(t, nil)
	pid := d.State(t, c.ID).Pid
	for _, command := range []string{"create", "run"} {
		r := d.Do(t, command, "--bundle", c.Dir, c.ID)
		if r.Exit == 0 || !strings.Contains(r.Stderr, "exist") {
			t.Errorf("%s of an id in use:\n%v", command, r)
		}
	}
	if s := d.State(t, c.ID); s.Status != "running" || s.Pid != pid {
		t.Errorf("the running container was touched: %+v", s)
	}
}

// TestFewDescriptors creates a container under a low limit of open files.
func TestFewDescriptors(t *testing.T) {
	_, p := harness.Peers(t)
	d := box.Bare(t, p)
	bundle := box.Bundle(t, nil)
	args := append([]string{"sh", "-c", `ulimit -n 64; exec "$@"`, "sh"}, d.Args("run", "--bundle", bundle.Dir, bundle.ID)...)
	if r := box.Run(t, harness.Cmd{Args: args}); r.Exit != 0 {
		t.Error(r)
	}
}
