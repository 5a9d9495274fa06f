package oci

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestCheckpoint_Refused: a profile with rules can't be restored, what does not run can't be written, and a CRIU that is
// missing or does not know this kernel is an error in its own words. The container learns nothing of any attempt.
func TestCheckpoint_Refused(t *testing.T) {
	_, p := harness.Peers(t)
	for _, profile := range []string{"agent", "none"} {
		d := box.Bare(t, p)
		d.Global = []string{"--profile", profile}
		c := d.Up(t, nil)
		if profile == "agent" {
			fails(t, d.Do(t, "checkpoint", "--image-path", box.TempDir(t), c.ID), `profile "agent": a restored task would not be under its Landlock`)
			fails(t, d.Do(t, "restore", "--image-path", box.TempDir(t), "--bundle", c.Dir, box.ID()), `profile "agent": a restored task would not be under its Landlock`)
		} else {
			fails(t, d.Do(t, "checkpoint", "--image-path", box.TempDir(t), "--lazy-pages", c.ID), "--lazy-pages is not supported")
			fails(t, d.Do(t, "restore", "--image-path", box.TempDir(t), "--bundle", c.Dir, box.ID()), "not a checkpoint of agentsafe")
			with := *d
			with.Global = append(with.Global, "--criu", "/nosuch/criu")
			fails(t, with.Do(t, "checkpoint", "--image-path", box.TempDir(t), c.ID), "/nosuch/criu")
		}
		if s := d.State(t, c.ID); s.Status != "running" {
			t.Errorf("after the attempts: %+v", s)
		}
		d.Must(t, "kill", c.ID, "KILL")
		d.WaitStatus(t, c.ID, "stopped")
		fails(t, d.Do(t, "checkpoint", "--image-path", box.TempDir(t), c.ID), "container not running")
	}
	fails(t, box.Bare(t, p).Do(t, "checkpoint", "ID"), "does not exist")
}

// counter is a program whose state is in its memory, and which tells it to whoever looks into its root file system.
const counter = `i=0; while :; do i=$((i+1)); echo $i >/count.tmp; mv /count.tmp /count; sleep 0.05; done`

// TestCheckpoint: a container is written and made again, with its memory, mounts, host name and cgroup, under another id.
// Where CRIU does not know the kernel (Debian's 3.17 reads no vDSO of Linux 6.18) it is asked all the same, up to its own
// refusal: its complaint is told, the container goes on, and a failed restore leaves nothing.
func TestCheckpoint(t *testing.T) {
	if _, err := exec.LookPath("criu"); err != nil {
		t.Skip("probe criu: no such program; integration/vm has it")
	}
	_, p := harness.Peers(t)
	d := box.Bare(t, p)
	d.Global = []string{"--profile", "none"}
	shared := box.TempDir(t)
	c := d.Up(t, func(s *specs.Spec) {
		s.Process.Args = []string{"/bin/sh", "-c", counter}
		s.Hostname = "written"
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/shared", Type: "bind", Source: shared, Options: []string{"bind"}})
	})
	count(t, c.Rootfs(), 0)
	images := filepath.Join(box.TempDir(t), "images")
	if out, err := exec.Command("criu", "check").CombinedOutput(); err != nil {
		t.Logf("probe criu check: %v: %s", err, out)
		refusedByCriu(t, d, c, images)
		return
	}
	d.Must(t, "checkpoint", "--leave-running", "--image-path", images, c.ID)
	before := count(t, c.Rootfs(), 0)
	count(t, c.Rootfs(), before) // it goes on
	d.Must(t, "checkpoint", "--image-path", images, c.ID)
	fails(t, d.Do(t, "state", c.ID), "does not exist")
	last := count(t, c.Rootfs(), 0)

	id := box.ID()
	t.Cleanup(func() { d.Do(t, "delete", "--force", id) })
	pidFile := filepath.Join(box.TempDir(t), "pid")
	d.Must(t, "restore", "--detach", "--image-path", images, "--bundle", c.Dir, "--pid-file", pidFile, id)
	if n := count(t, c.Rootfs(), last); n > last+1000 {
		t.Errorf("it counts from %d, and had come to %d", n, last)
	}
	s := d.State(t, id)
	if pid, err := os.ReadFile(pidFile); err != nil || strings.TrimSpace(string(pid)) != strconv.Itoa(s.Pid) || s.Status != "running" {
		t.Errorf("pid file %q, %v, state %+v", pid, err, s)
	}
	if err := os.WriteFile(filepath.Join(shared, "file"), []byte("from outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The host's null device masks files: through a mount that is not read-only its mode could be changed.
	if masks := d.Must(t, "exec", id, "grep", " devtmpfs ", "/proc/self/mounts"); strings.Contains(masks, " rw,") || masks == "" {
		t.Errorf("mounts of the host's devices:\n%s", masks)
	}
	got := d.Must(t, "exec", id, "sh", "-c", "hostname; cat /shared/file; echo; echo $$; cat /proc/self/cgroup")
	if !strings.HasPrefix(got, "written\nfrom outside\n") || strings.Contains(got, c.ID) {
		t.Errorf("in the restored container:\n%s", got)
	}
	if ps := d.Must(t, "ps", "--format", "json", id); !strings.Contains(ps, strconv.Itoa(s.Pid)) {
		t.Errorf("process %d is not in the container's cgroup: %s", s.Pid, ps)
	}
	d.Must(t, "pause", id)
	d.WaitStatus(t, id, "paused")
	d.Must(t, "resume", id)
	d.Must(t, "kill", id, "KILL")
	d.WaitStatus(t, id, "stopped")
	d.Must(t, "delete", id)
	last = count(t, c.Rootfs(), 0)

	// In the foreground, with the exit status of the restored process.
	again := harness.Cmd{Args: d.Args("restore", "--image-path", images, "--bundle", c.Dir, id)}
	running := box.Start(t, again)
	// Its images are older than what the one before had come to: its first numbers are lower.
	for range 3000 {
		if n := count(t, c.Rootfs(), 0); n < last {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	d.Must(t, "kill", id, "KILL")
	if r := running.Wait(t); r.Exit != 128+9 {
		t.Errorf("restore in the foreground: %v", r)
	}
	fails(t, d.Do(t, "state", id), "does not exist")
}

// refusedByCriu: dump and restore are asked of a CRIU that can't.
func refusedByCriu(t *testing.T, d *harness.Bare, c harness.Bundle, images string) {
	t.Helper()
	fails(t, d.Do(t, "checkpoint", "--image-path", images, c.ID), "criu dump: exit status 1: ")
	if s := d.State(t, c.ID); s.Status != "running" {
		t.Errorf("after CRIU's refusal: %+v", s)
	}
	count(t, c.Rootfs(), count(t, c.Rootfs(), 0)) // it goes on
	d.Must(t, "delete", "--force", c.ID)
	id := box.ID()
	fails(t, d.Do(t, "restore", "--detach", "--image-path", images, "--bundle", c.Dir, id), "criu restore: exit status 1: ")
	fails(t, d.Do(t, "state", id), "does not exist")
	if list := d.Must(t, "list", "-q"); strings.TrimSpace(list) != "" {
		t.Errorf("after a failed restore there is %s", list)
	}
}

// count waits until the counter has passed a number, and returns where it is.
func count(t *testing.T, rootfs string, past int) int {
	t.Helper()
	last := ""
	for range 3000 {
		data, err := os.ReadFile(filepath.Join(rootfs, "count"))
		if err == nil {
			last = strings.TrimSpace(string(data))
			if n, err := strconv.Atoi(last); err == nil && n > past {
				return n
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("the counter is at %q and does not pass %d", last, past)
	return 0
}
