package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

func bare(t *testing.T) *harness.Bare {
	t.Helper()
	_, agentsafe := harness.Peers(t)
	return box.Bare(t, agentsafe)
}

// up starts a container on an overlaid folder; it is deleted, with its layers, when the test ends.
func up(t *testing.T, d *harness.Bare, dir string, mutate func(*specs.Spec)) string {
	t.Helper()
	id := d.Up(t, func(s *specs.Spec) {
		overlaid(dir)(s)
		if mutate != nil {
			mutate(s)
		}
	}).ID
	t.Cleanup(func() {
		d.Do(t, "delete", "--force", id)
		mustCtl(t, "layers", "rm", id)
	})
	return id
}

func sh(script string) []string { return []string{"sh", "-c", script} }

func exec(t *testing.T, d *harness.Bare, id, script string) string {
	t.Helper()
	return d.Must(t, append([]string{"exec", id}, sh(script)...)...)
}

func TestExecIsATransaction(t *testing.T) {
	d := bare(t)
	dir := folder(t, map[string]string{"a": "1", "d/x": "x", ".git/config": "[core]\n"})
	before := listing(t, dir)
	id := up(t, d, dir, nil)
	exec(t, d, id, "echo 2 >a; mkdir new; echo n >new/f; echo '[alias]' >>.git/config")
	if r := d.Do(t, append([]string{"exec", id}, sh("rm -r d; exit 3")...)...); r.Exit != 3 {
		t.Fatalf("exit status of a transaction:\n%v", r)
	}
	if got := exec(t, d, id, "cat a new/f; ls"); got != "2\nn\na\nnew" {
		t.Errorf("the next exec sees %q", got)
	}
	h := history(t, id)
	if len(h) != 3 || h[0].Changes != 4 || h[1].Changes != 1 || *h[1].Exit != 3 || h[2].Changes != 0 {
		t.Errorf("log: %+v", h)
	}
	if got := mustCtl(t, "diff", "--name-only", id+"@2"); got != "D /job/d/\n" {
		t.Errorf("diff of the second: %q", got)
	}
	mustCtl(t, "undo", id+"@2")
	if got := exec(t, d, id, "cat d/x"); got != "x" {
		t.Errorf("after undo: %q", got)
	}
	if now := listing(t, dir); now != before {
		t.Errorf("the host's folder has changed:\n%s", now)
	}
	d.Must(t, "delete", "--force", id)
	out := mustCtl(t, "promote", id)
	if !strings.Contains(out, "left     m") && !strings.Contains(out, "/job/.git/config: git runs") {
		t.Errorf("promote says %q", out)
	}
	want := strings.Replace(before, `a -rw-r--r-- "1"`, `a -rw-r--r-- "2\n"`, 1) + "new drwxr-xr-x\nnew/f -rw-r--r-- \"n\\n\"\n"
	if now := listing(t, dir); now != want {
		t.Errorf("promoted:\n%s\nwant:\n%s", now, want)
	}
}

func TestBaseIsLive(t *testing.T) {
	d := bare(t)
	dir := folder(t, map[string]string{"served": "1"})
	id := up(t, d, dir, func(s *specs.Spec) {
		// A server that stands in the workspace and reads a file by a relative path, over and over.
		s.Process.Args = sh("while sleep 0.05; do cat served >seen 2>/dev/null; done")
	})
	exec(t, d, id, "echo edited >served")
	for range 100 {
		if r := d.Do(t, "exec", id, "cat", "seen"); r.Stdout == "edited\n" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("the first process does not see what an exec has committed")
}

func TestConcurrentExecs(t *testing.T) {
	d := bare(t)
	dir := folder(t, map[string]string{"shared": "0", "mine": "0"})
	id := up(t, d, dir, nil)
	slow := box.Start(t, harness.Cmd{Args: d.Args(append([]string{"exec", id}, sh("echo slow >shared; echo s >slow; sleep 1; ls")...)...)})
	for range 100 {
		if len(history(t, id)) == 1 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
	if got := exec(t, d, id, "cat shared; ls; echo quick >shared"); got != "0mine\nshared" {
		t.Errorf("an exec sees another's uncommitted writes: %q", got)
	}
	if r := slow.Wait(t); r.Exit != 0 || r.Stdout != "mine\nshared\nslow\n" {
		t.Errorf("the slow one:\n%v", r)
	}
	h := history(t, id)
	if h[0].Status != "conflict" || len(h[0].Conflicts) != 1 || h[0].Conflicts[0].Path != "shared" || h[1].Status != "committed" {
		t.Errorf("log: %+v", h)
	}
	if got := exec(t, d, id, "cat shared; ls"); got != "quick\nmine\nshared" {
		t.Errorf("after the conflict: %q", got)
	}
}

func TestBackgroundEndsWithItsExec(t *testing.T) {
	d := bare(t)
	id := up(t, d, folder(t, nil), nil)
	exec(t, d, id, "(sleep 333; echo late >late) >/dev/null 2>&1 & echo made >f")
	if got := exec(t, d, id, "ps | grep -c '[s]leep 333'; ls"); got != "0\nf" {
		t.Errorf("what an exec left behind: %q", got)
	}
}

func TestTerminalWorksOnTheBase(t *testing.T) {
	d := bare(t)
	id := up(t, d, folder(t, nil), nil)
	if r := box.Run(t, harness.Cmd{Args: d.Args("exec", "-t", id, "sh", "-c", "echo typed >f"), TTY: true}); r.Exit != 0 {
		t.Fatal(r)
	}
	if got := exec(t, d, id, "cat f"); got != "typed" {
		t.Errorf("what was typed in a terminal: %q", got)
	}
	if h := history(t, id); len(h) != 1 {
		t.Errorf("a terminal is a transaction: %+v", h)
	}
}

func TestDetachedExecIsSettledByTheNext(t *testing.T) {
	d := bare(t)
	id := up(t, d, folder(t, nil), nil)
	d.Must(t, append([]string{"exec", "--detach", id}, sh("echo d >f")...)...)
	for range 100 {
		if d.Do(t, "exec", id, "cat", "f").Stdout == "d\n" {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("what a detached exec wrote does not arrive")
}

func TestNestedMount(t *testing.T) {
	d := bare(t)
	inner := folder(t, map[string]string{"i": "inner"})
	id := up(t, d, folder(t, map[string]string{"mods/below": "b"}), func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/job/mods", Type: "bind", Source: inner, Options: []string{"rbind", "ro"}})
	})
	if got := exec(t, d, id, "ls mods; echo n >n; touch mods/no 2>&1; true"); !strings.HasPrefix(got, "i\n") || !strings.Contains(got, "Read-only") {
		t.Errorf("a mount beneath the workspace, in a transaction: %q", got)
	}
}

func TestReadonlyWorkspace(t *testing.T) {
	dir := folder(t, map[string]string{"a": "1"})
	r := bare(t).RunSpec(t, func(s *specs.Spec) {
		overlaid(dir)(s)
		s.Annotations = map[string]string{"agentsafe.dev/workspace": "readonly"}
		s.Process.Args = sh("cat a; touch b")
	})
	if r.Exit != 1 || r.Stdout != "1" || !strings.Contains(r.Stderr, "Read-only file system") {
		t.Errorf("%v", r)
	}
}

// overlayFolder is a folder that lies on an overlay, as in a container.
func overlayFolder(t *testing.T) string {
	t.Helper()
	return overlayOn(t, folder(t, map[string]string{"f": "below\n"}))
}

func overlayOn(t *testing.T, lower string) string {
	t.Helper()
	dir := box.TempDir(t)
	for _, d := range []string{"upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(dir, "merged")
	options := "lowerdir=" + lower + ",upperdir=" + dir + "/upper,workdir=" + dir + "/work"
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return merged
}

// TestWorkspaceOnOverlay has a folder that lies on an overlay already: it can be overlaid once more.
func TestWorkspaceOnOverlay(t *testing.T) {
	dir := overlayFolder(t)
	d := bare(t)
	id := up(t, d, dir, func(s *specs.Spec) { delete(s.Annotations, "agentsafe.dev/transaction") })
	if got := exec(t, d, id, "echo more >>f; echo new >n; cat f n"); got != "below\nmore\nnew" {
		t.Errorf("in the container: %q", got)
	}
	if now := listing(t, dir); strings.Contains(now, "more") {
		t.Errorf("the host's folder has changed:\n%s", now)
	}
	d.Must(t, "delete", "--force", id)
	mustCtl(t, "promote", id)
	if now := listing(t, dir); !strings.Contains(now, `"below\nmore\n"`) {
		t.Errorf("promoted:\n%s", now)
	}
}

func TestRefusedWorkspaces(t *testing.T) {
	file := filepath.Join(folder(t, map[string]string{"f": "1"}), "f")
	outer := folder(t, map[string]string{"inner/f": "1"})
	inner := filepath.Join(outer, "inner")
	if err := unix.Mount(inner, inner, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(inner, 0)
	twice := overlayOn(t, overlayFolder(t))
	for _, c := range []struct {
		name, source, destination, want string
	}{
		{"a single file", file, "/job/f", "a single file can't be"},
		{"mounts beneath", outer, "/job", "is mounted beneath it"},
		{"on an overlay", overlayFolder(t), "/job", "the kernel stacks two at most"},
		{"on two overlays", twice, "/job", "the kernel stacks two at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := bare(t)
			b := box.Bundle(t, func(s *specs.Spec) {
				s.Mounts = append(s.Mounts, specs.Mount{Destination: c.destination, Type: "bind", Source: c.source, Options: []string{"rbind"}})
				s.Annotations = map[string]string{"agentsafe.dev/workspace": "overlay"}
				if c.name == "on an overlay" {
					s.Annotations["agentsafe.dev/transaction"] = "auto"
				}
			})
			r := d.Do(t, "create", "--bundle", b.Dir, b.ID)
			if r.Exit == 0 || !strings.Contains(r.Stderr, c.want) {
				t.Errorf("%v", r)
			}
			entries, err := os.ReadDir(store)
			if err != nil || len(entries) > 0 {
				t.Errorf("layers are left: %v %v", entries, err)
			}
		})
	}
}

// TestQuota gives a container an amount of disk. The task meets ENOSPC, and everything goes on.
func TestQuota(t *testing.T) {
	if unix.Access("/dev/loop-control", unix.R_OK) != nil {
		t.Skip("probe /dev/loop-control: a quota needs loop devices")
	}
	d := bare(t)
	dir := folder(t, map[string]string{"a": "1", "b": "2"})
	before := listing(t, dir)
	id := up(t, d, dir, func(s *specs.Spec) {
		s.Annotations["agentsafe.dev/layer-bytes"], s.Annotations["agentsafe.dev/layer-inodes"] = "16MiB", "300"
	})
	r := d.Do(t, append([]string{"exec", id}, sh("dd if=/dev/zero of=big bs=64k; echo $?; stat -c %s big; rm big; i=0; while : >f$i; do i=$((i+1)); done")...)...)
	if r.Exit == 0 || strings.Count(r.Stderr, "No space left on device") != 2 {
		t.Errorf("a full layer:\n%v", r)
	}
	if got := exec(t, d, id, "rm -f f*; echo 3 >a; mkdir n; echo n >n/f; ls"); got != "a\nb\nn" {
		t.Errorf("after a full layer: %q", got)
	}
	// What a commit has no room for is kept, and said.
	exec(t, d, id, "dd if=/dev/zero of=half bs=1M count=9 2>/dev/null; rm b")
	h := history(t, id)
	if last := h[len(h)-1]; last.Status != "failed" {
		t.Errorf("log: %+v", h)
	}
	if got := exec(t, d, id, "ls"); got != "a\nb\nn" {
		t.Errorf("after a commit without room: %q", got)
	}
	if now := listing(t, dir); now != before {
		t.Errorf("the host's folder has changed:\n%s", now)
	}
	d.Must(t, "delete", "--force", id)
	mustCtl(t, "promote", id)
	if now := listing(t, dir); !strings.Contains(now, `a -rw-r--r-- "3\n"`) || !strings.Contains(now, "n/f") {
		t.Errorf("promoted:\n%s", now)
	}
	if bound, err := filepath.Glob("/sys/block/loop*/loop/backing_file"); err != nil {
		t.Error(err)
	} else {
		for _, p := range bound {
			if file, err := os.ReadFile(p); err == nil && strings.Contains(string(file), id) {
				t.Errorf("%s is left: %s", p, file)
			}
		}
	}
}
