package container

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/cgroup"
)

// TestDestroyCgroup_JoinedLate: an exec joins the cgroups after everything in them was killed, and a pause freezes it.
func TestDestroyCgroup_JoinedLate(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("probe root: cgroups can't be made")
	}
	host, err := cgroup.ReadHost()
	if err != nil {
		t.Fatal(err)
	}
	for _, frozen := range []bool{false, true} {
		t.Run(fmt.Sprintf("frozen %v", frozen), func(t *testing.T) {
			name := fmt.Sprintf("astest-late-%d-%v", os.Getpid(), frozen)
			cfg, err := cgroup.Plan(cgroup.Input{ID: name, CgroupsPath: name, Host: host})
			if err != nil {
				t.Fatal(err)
			}
			g, err := cgroup.Create(cfg)
			if err != nil {
				t.Fatal(err)
			}
			late := exec.Command("sleep", "1000")
			if err := late.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				late.Process.Kill()          //nolint:errcheck // it should be gone
				g.Kill(context.Background()) //nolint:errcheck // likewise, and thawed
				late.Wait()                  //nolint:errcheck // likewise
				g.Destroy()                  //nolint:errcheck // likewise
			})
			if err := g.AddExec(late.Process.Pid, 0, nil); err != nil {
				t.Fatal(err)
			}
			if frozen {
				if err := g.Freeze(); err != nil {
					t.Fatal(err)
				}
			}
			// What the first pass could remove is gone: the unified hierarchy of a hybrid host, which nothing has to join.
			if dir := cfg.State.Paths[""]; dir != "" && !cfg.State.Unified {
				if err := os.WriteFile(filepath.Join(filepath.Dir(dir), "cgroup.procs"), fmt.Append(nil, late.Process.Pid), 0); err != nil {
					t.Fatal(err)
				}
				if err := unix.Rmdir(dir); err != nil {
					t.Fatal(err)
				}
			}
			c := &Container{id: name, group: g}
			if err := c.destroyCgroup(t.Context()); err != nil {
				t.Error(err)
			}
			if g.Exists() {
				t.Error("cgroups are left")
			}
		})
	}
}
