package attacks

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// An image whose /proc, /sys or /dev is a symlink would have masks and devices land elsewhere. Seen with
// RESOLVE_NO_SYMLINKS removed: the container starts.
func TestAttack_CVE_2023_27561_SymlinkedProc(t *testing.T) {
	for _, dir := range []string{"proc", "sys"} {
		for _, a := range everyWay(t, "none") {
			r := a.run(t, nil, func(rootfs string) {
				if err := os.MkdirAll(rootfs+"/elsewhere", 0o755); err != nil {
					t.Fatal(err)
				}
				link(t, "/elsewhere", rootfs+"/"+dir)
			})
			a.refused(t, r, "/"+dir)
		}
	}
}

// Seen with openDev following symlinks: nodes and links appear in /elsewhere.
func TestAttack_CVE_2026_41579_SymlinkedDev(t *testing.T) {
	for _, to := range []string{"/elsewhere", "../../../../../../../../HOST"} {
		for _, a := range everyWay(t, "none") {
			to := strings.Replace(to, "HOST", filepath.Dir(a.marker), 1)
			b := a.bundle(t, without("/dev"), func(rootfs string) {
				if err := os.MkdirAll(rootfs+"/elsewhere", 0o755); err != nil {
					t.Fatal(err)
				}
				link(t, to, rootfs+"/dev")
			})
			a.refused(t, a.do(t, "run", "--bundle", b.Dir, b.ID), "/dev")
			a.untouched(t)
			if names, _ := os.ReadDir(b.Rootfs() + "/elsewhere"); len(names) > 0 {
				t.Errorf("made in /elsewhere: %v", names)
			}
		}
	}
}

// The image brings its own /dev/null. Seen with the checks of what exists removed: all of these are accepted.
func TestAttack_CVE_2025_31133_FakeDevNull(t *testing.T) {
	for name, spoil := range map[string]func(string){
		"symlink": func(dev string) { link(t, "/proc/sys/kernel/core_pattern", dev+"/null") },
		"file":    func(dev string) { write(t, dev+"/null", "bait", 0o666) },
		"fifo": func(dev string) {
			if err := unix.Mkfifo(dev+"/null", 0o666); err != nil {
				t.Fatal(err)
			}
		},
		"zero": func(dev string) {
			if err := unix.Mknod(dev+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
				t.Fatal(err)
			}
		},
	} {
		a := open(t, "none")
		r := a.run(t, all(without("/dev"), harness.Sh("cat /proc/keys")), func(rootfs string) { spoil(rootfs + "/dev") })
		a.refused(t, r, "/dev/null")
		if name == "symlink" && strings.Contains(r.Stdout, "core") {
			t.Errorf("%s:\n%v", name, r)
		}
	}
	// A good one, and the masks show nothing.
	for _, a := range everyWay(t, "none") {
		r := a.run(t, all(without("/dev"), harness.Sh("cat /proc/keys; test -c /proc/keys; echo $?; ls /sys/firmware")), nil)
		if r.Stdout != "0\n" {
			t.Errorf("masks:\n%v", r)
		}
	}
}

// Without a mount on /dev the image chooses what /dev/console, /dev/ptmx and /dev/pts are. Nothing that they lead to
// may be opened, mounted over or chowned. Seen with RESOLVE_NO_SYMLINKS replaced by O_NOFOLLOW, which with O_PATH opens
// a symlink: accepted.
func TestAttack_CVE_2025_52565_SwappedConsole(t *testing.T) {
	for name, spoil := range map[string]func(rootfs string){
		"console":  func(rootfs string) { link(t, "/etc/passwd", rootfs+"/dev/console") },
		"dangling": func(rootfs string) { link(t, "/made", rootfs+"/dev/console") },
		"ptmx": func(rootfs string) {
			write(t, rootfs+"/dev/pts/ptmx", "", 0o666)
			link(t, "/etc/passwd", rootfs+"/dev/ptmx")
		},
		"pts": func(rootfs string) { link(t, "/etc", rootfs+"/dev/pts") },
		"fake": func(rootfs string) {
			write(t, rootfs+"/dev/pts/x", "", 0o666)
			if err := unix.Mknod(rootfs+"/dev/pts/ptmx", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
				t.Fatal(err)
			}
		},
	} {
		// With a good /dev/pts the terminal is made, and what is wrong is where it goes.
		goodPts := name == "console" || name == "dangling"
		a := open(t, "none")
		b := a.bundle(t, all(harness.Sh("true"), func(s *specs.Spec) {
			s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool {
				return m.Destination == "/dev" || !goodPts && strings.HasPrefix(m.Destination, "/dev/")
			})
			s.Process.Terminal, s.Process.User.UID = true, 1000
		}), spoil)
		r := box.Run(t, harness.Cmd{Args: a.args("run", "--bundle", b.Dir, b.ID), TTY: true})
		if r.Exit == 0 {
			t.Errorf("%s: accepted:\n%v", name, r)
		}
		if _, err := os.Lstat(b.Rootfs() + "/made"); err == nil {
			t.Errorf("%s: the target of a dangling symlink was made", name)
		}
		if st, err := os.Stat(b.Rootfs() + "/etc/passwd"); err != nil || owner(st) != 0 {
			t.Errorf("%s: /etc/passwd changed its owner (%v)", name, err)
		}
	}
}

func owner(st os.FileInfo) uint32 { return st.Sys().(*unixStat).Uid }

// Mount points that are symlinks out of the root: the mount must land inside, and the host see nothing of it. Seen with
// the target opened without RESOLVE_IN_ROOT: directories are made on the host.
func TestAttack_CVE_2021_30465_MountTargetSymlink(t *testing.T) {
	for _, profile := range []string{"", "none"} {
		for _, a := range everyWay(t, profile) {
			source := box.TempDir(t)
			out := filepath.Dir(a.marker)
			targets := []string{"/abs", "/up", "/abs/new", "/up/a/b/c", "/via/x", "/dangling", "/file"}
			r := a.run(t, all(harness.Sh("cat "+a.marker+"; grep -c tmpfs /proc/mounts"), func(s *specs.Spec) {
				for _, d := range targets {
					m := specs.Mount{Destination: d, Type: "tmpfs", Source: "tmpfs", Options: []string{"size=64k"}}
					if d == "/file" {
						m = specs.Mount{Destination: d, Type: "bind", Source: filepath.Join(source, "f"), Options: []string{"bind"}}
					}
					s.Mounts = append(s.Mounts, m)
				}
			}), func(rootfs string) {
				write(t, source+"/f", "x", 0o644)
				link(t, out, rootfs+"/abs")
				link(t, strings.Repeat("../", 30)+out, rootfs+"/up")
				link(t, "abs/../up", rootfs+"/via")
				link(t, out+"/made", rootfs+"/dangling")
				link(t, a.marker, rootfs+"/file")
			})
			a.safe(t, r)
			if r.Exit != 0 {
				t.Errorf("profile %q:\n%v", profile, r)
			}
		}
	}
}

// The target is swapped between a directory and a symlink to the host's while containers are created, as by another
// container that shares the volume. Seen with the target opened without RESOLVE_IN_ROOT: a directory is made on the host
// within three tries.
func TestAttack_CVE_2021_30465_RacingTarget(t *testing.T) {
	a := open(t, "none")
	out := filepath.Dir(a.marker)
	b := a.bundle(t, all(harness.Sh("true"), func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/vol/a/b", Type: "tmpfs", Source: "tmpfs"})
	}), func(rootfs string) {
		for _, d := range []string{"/vol/a", "/vol/dir"} {
			if err := os.MkdirAll(rootfs+d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		link(t, strings.Repeat("../", 30)+out, rootfs+"/vol/link")
	})
	vol := b.Rootfs() + "/vol/"
	stop, stopped := make(chan struct{}), make(chan struct{})
	var swapping sync.Mutex
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			swapping.Lock()
			unix.Renameat2(unix.AT_FDCWD, vol+"a", unix.AT_FDCWD, vol+"link", unix.RENAME_EXCHANGE) //nolint:errcheck // a race
			swapping.Unlock()
		}
	}()
	// The mount point is to be made each time.
	reset := func() {
		swapping.Lock()
		defer swapping.Unlock()
		for _, name := range []string{"a", "link"} {
			if st, err := os.Lstat(vol + name); err == nil && st.IsDir() {
				os.Remove(vol + name + "/b")
			}
		}
	}
	started := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		if r := a.do(t, "run", "--bundle", b.Dir, b.ID); r.Exit == 0 {
			started++
		}
		a.untouched(t)
		if t.Failed() {
			break
		}
		reset()
	}
	close(stop)
	<-stopped
	t.Logf("%d containers started", started)
}

// Mounts and renames elsewhere on the host make openat2 answer EAGAIN where a path has "..": that must not end a
// creation. Seen without another try: one creation in some dozens fails with "resource temporarily unavailable".
func TestAttack_MountStormElsewhere(t *testing.T) {
	a := open(t, "none")
	storm := box.TempDir(t)
	b := a.bundle(t, all(harness.Sh("true"), func(s *specs.Spec) {
		for i := range 30 {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: fmt.Sprintf("/var/run/a/m%d", i), Type: "tmpfs", Source: "tmpfs"})
		}
	}), func(rootfs string) {
		link(t, "../usr/../usr/../run/../run", rootfs+"/var/run")
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.Rename(storm, storm+"x") //nolint:errcheck // the storm
			os.Rename(storm+"x", storm) //nolint:errcheck // likewise
		}
	}()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end) && !t.Failed(); {
		if r := a.do(t, "run", "--bundle", b.Dir, b.ID); r.Exit != 0 {
			t.Errorf("%v", r)
		}
	}
	close(stop)
	<-stopped
}

// TestAttack_CopyUpSymlinks: tmpcopyup reads what the image has at a path, in the runtime. The image has a directory, too,
// where its links lead to, so that there is a mount point and the task can look at what was copied. Seen with the look-up
// no longer kept in the root: the secret.
func TestAttack_CopyUpSymlinks(t *testing.T) {
	for _, a := range everyWay(t, "none") {
		to := func(rootfs, target string) {
			if err := os.MkdirAll(rootfs+filepath.Dir(a.marker), 0o755); err != nil {
				t.Fatal(err)
			}
			link(t, target, rootfs+"/data")
		}
		for name, spoil := range map[string]func(rootfs string){
			"destination": func(rootfs string) { to(rootfs, filepath.Dir(a.marker)) },
			"upwards":     func(rootfs string) { to(rootfs, strings.Repeat("../", 20)+filepath.Dir(a.marker)) },
			"file": func(rootfs string) {
				if err := os.Mkdir(rootfs+"/data", 0o755); err != nil {
					t.Fatal(err)
				}
				link(t, a.marker, rootfs+"/data/marker")
				link(t, filepath.Dir(a.marker), rootfs+"/data/dir")
			},
			"device": func(rootfs string) { link(t, "/dev", rootfs+"/data") },
		} {
			r := a.run(t, all(harness.Sh(`for f in /data/marker /data/dir/* /data/*; do [ ! -f "$f" ] || head -c 4096 "$f"; done; exit 0`), func(s *specs.Spec) {
				s.Mounts = append(s.Mounts, specs.Mount{Destination: "/data", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup"}})
			}), spoil)
			a.safe(t, r)
			if name == "file" && r.Exit != 0 {
				t.Errorf("%s:\n%v", name, r)
			}
		}
	}
}
