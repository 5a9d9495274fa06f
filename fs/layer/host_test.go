package layer

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHostFolderChangesMeanwhile renames, removes, replaces and locks the host's folder while a task runs. The task goes on,
// and promotion refuses whatever is not the folder that the task saw; nothing outside of it is written.
func TestHostFolderChangesMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, b *bench)
		want   error // of the promotion; nil if it works
	}{
		{"renamed", func(t *testing.T, b *bench) { must(t, os.Rename(b.host, b.host+".moved")) }, unix.ENOENT},
		{"removed", func(t *testing.T, b *bench) { must(t, os.RemoveAll(b.host)) }, unix.ENOENT},
		{"replaced", func(t *testing.T, b *bench) {
			must(t, os.Rename(b.host, b.host+".moved"))
			must(t, os.Mkdir(b.host, 0o755))
		}, unix.ESTALE},
		{"a symlink", func(t *testing.T, b *bench) {
			must(t, os.Rename(b.host, b.host+".moved"))
			must(t, os.Symlink(b.host+".moved", b.host))
		}, unix.ENOTDIR},
		{"read-only", func(t *testing.T, b *bench) {
			must(t, unix.Mount(b.host, b.host, "", unix.MS_BIND, ""))
			t.Cleanup(func() { must(t, unix.Unmount(b.host, unix.MNT_DETACH)) })
			must(t, unix.Mount("", b.host, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}, unix.EROFS},
		{"changed beside", func(t *testing.T, b *bench) { write(t, b.host, map[string]string{"d/x": "host's"}) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, start)
			b.run(func(d string) { write(t, d, map[string]string{"a": "2"}) })
			tick()
			c.change(t, b)
			if tx := b.run(func(d string) { write(t, d, map[string]string{"new": "n"}) }); tx.Status != StatusCommitted {
				t.Fatalf("the next exec: %+v", tx)
			}
			must(t, b.l.Undo(2))
			must(t, b.l.Redo(2))
			plan, err := b.l.PlanPromotion(nil)
			if err == nil {
				err = b.l.Promote(plan)
			}
			if !errors.Is(err, c.want) {
				t.Errorf("promotion: %v, want %v", err, c.want)
			}
			if c.want == nil && content(t, b.host)["d/x"] != "host's" {
				t.Error("the host's own change is gone")
			}
			if c.want != nil && len(b.l.Transactions) != 2 {
				t.Error("the log is gone")
			}
		})
	}
}
