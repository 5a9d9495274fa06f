package rootless

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// delegate makes a cgroup that belongs to a user, as systemd does for Delegate=yes: the directory, and the files with which
// processes are moved and controllers passed on. Source: cgroup-v2.rst, Model of Delegation.
func delegate(t *testing.T, u *user) string {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Skip("probe cgroup2: /sys/fs/cgroup is not the unified hierarchy")
	}
	dir := filepath.Join(cgroupRoot, box.Tag+"-"+u.name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	err := os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte("+memory +pids +cpu"), 0)
	for _, f := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
		err = errors.Join(err, os.Chown(filepath.Join(dir, f), u.uid, u.uid))
	}
	// The kernel wants write access to the common ancestor's cgroup.procs of both sides: the user starts inside.
	inside := filepath.Join(dir, "session")
	err = errors.Join(err, os.Mkdir(inside, 0o755), os.Chown(inside, u.uid, u.uid), os.Chown(filepath.Join(inside, "cgroup.procs"), u.uid, u.uid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(inside); err != nil {
			t.Errorf("remove %s: %v", inside, err)
		}
	})
	return inside
}

// TestDelegation: in a cgroup that was delegated to the user limits of memory, processors and processes hold, and nothing
// says that they don't.
func TestDelegation(t *testing.T) {
	for _, u := range []*user{rick, solo} {
		t.Run(u.name, func(t *testing.T) {
			inside := delegate(t, u)
			run := func(args ...string) (string, string, int) {
				c := u.cmd(append([]string{"agentsafectl", "run"}, args...)...)
				// The shell of the user's session is in the cgroup before it is the user.
				c.Args = append([]string{"sh", "-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, inside}, c.Args...)
				r := box.Run(t, c)
				return r.Stdout, r.Stderr, r.Exit
			}
			out, stderr, status := run("--memory", "64m", "--cpus", "0.5", "--pids-limit", "20", "--", "sh", "-c", "cat /proc/self/cgroup; exit 4")
			if status != 4 || strings.Contains(stderr, "no cgroup is delegated") {
				t.Errorf("%d\n%s%s", status, out, stderr)
			}
			out, stderr, status = run("--memory", "64m", "--", "sh", "-c", "head -c 300m /dev/zero | tail -c 250m >/dev/null")
			if status != 137 || !strings.Contains(stderr, "ran out of memory") {
				t.Errorf("memory: %d\n%s%s", status, out, stderr)
			}
			out, stderr, status = run("--pids-limit", "12", "--", "sh", "-c", "i=0; while [ $i -lt 30 ]; do sleep 3 & i=$((i+1)); done; wait")
			if !strings.Contains(strings.ToLower(stderr), "fork") {
				t.Errorf("processes: %d\n%s%s", status, out, stderr)
			}
		})
	}
}
