package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A process that moves itself is in every hierarchy, as one that was moved, and its children with it; in a branch where it
// was given one.
func TestEnter(t *testing.T) {
	g := testGroup(t, nil)
	branch, err := g.NewBranch("exec-1")
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*Branch{"group": nil, "branch": branch} {
		t.Run(name, func(t *testing.T) {
			e, err := g.Enter(b)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if e == nil {
				if !g.state.Unified && g.state.Driver == DriverFS {
					t.Error("no way into a group of v1")
				}
				t.Skip("probe cgroup v1: there is none here, or systemd places the processes")
			}
			var script strings.Builder
			for i := range e.Entries {
				fmt.Fprintf(&script, "printf 0 >/proc/self/fd/%d || exit 1; ", 3+i)
			}
			c := exec.Command("/bin/sh", "-c", script.String()+"sleep 1000 & read end; kill $!")
			for _, entry := range e.Entries {
				c.ExtraFiles = append(c.ExtraFiles, entry.File)
			}
			if e.Birthplace != nil {
				c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(e.Birthplace.Fd())}
			}
			gate, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				gate.Close()
				c.Process.Kill() //nolint:errcheck // it may have ended
				c.Wait()         //nolint:errcheck // likewise
			}()
			for _, dir := range g.dirs() {
				at := dir
				if b != nil && filepath.Dir(b.dir) == dir {
					at = b.dir
				}
				eventually(t, "the process and its child in "+at, func() bool {
					pids, err := readPIDs(at, false)
					return err == nil && len(pids) == 2 && slices.Contains(pids, c.Process.Pid)
				})
			}
			gate.Close()
			c.Wait() //nolint:errcheck // its status says nothing
			eventually(t, "the end of both", func() bool {
				pids, err := g.PIDs(true)
				return err == nil && len(pids) == 0
			})
		})
	}
	if err := branch.Remove(); err != nil {
		t.Error(err)
	}
	if other := (&Branch{dir: filepath.Join(filepath.Dir(filepath.Dir(branch.dir)), "elsewhere", "exec-1")}); !g.state.Unified && g.state.Driver == DriverFS {
		if e, err := g.Enter(other); err == nil || !strings.Contains(err.Error(), "no branch of this group") {
			e.Close()
			t.Errorf("a branch of another group: %v", err)
		}
	}
	if _, err := os.Stat(branch.dir); err == nil {
		t.Error("the branch is left")
	}
}
