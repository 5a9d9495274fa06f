package rootless

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// podman is a command line of a user's own Podman; command is its subcommand.
func (u *user) podman(p harness.Peer, command ...string) []string {
	return append([]string{
		"/usr/bin/podman", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none", "--runtime", peer(p),
	}, command...)
}

// TestPodman has an ordinary user's Podman run containers, under runc and under agentsafe.
func TestPodman(t *testing.T) {
	noTunnel := tunnel(t) // before Podman has its own view of the mounts
	busybox, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(rick.folder(t), "image.tar")
	data, err := os.ReadFile(busybox.Archive)
	if err != nil {
		t.Fatal(err)
	}
	write(t, rick, archive, string(data))
	rick.must(t, rick.podman(harness.Peer{Name: "runc", Path: "runc"}, "load", "--quiet", "--input", archive)...)
	volume := rick.folder(t)
	for _, tc := range []struct {
		name   string
		flags  []string
		script string
		exit   int
		stdout string
	}{
		{"root of the user's ids", nil, "id -u; cat /proc/self/uid_map; exit 3", 3, `^0\n\s+0\s+4242\s+1\n\s+1\s+200000\s+65536\n$`},
		{"a user of the image", []string{"--user", "app"}, "id -u; touch /tmp/x && stat -c %u /tmp/x", 0, "^1000\n1000\n$"},
		{"keep-id", []string{"--userns", "keep-id"}, "id -u; id -un", 0, "^4242\nrick\n$"},
		{"an automatic user namespace", []string{"--userns", "auto"}, "cat /proc/self/uid_map | wc -l", 0, "^1\n$"},
		{"volume", []string{"--volume", volume + ":/v"}, "echo new >/v/out; stat -c %u /v/out", 0, "^0\n$"},
		{"read-only", []string{"--read-only", "--tmpfs", "/scratch", "--shm-size", "8m", "--cap-drop", "ALL"}, "touch /scratch/x && df -k /dev/shm | tail -1 | awk '{print $2}'; touch /x", 1, "^8192\n$"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				args := append([]string{"run", "--rm", "--network", "none"}, tc.flags...)
				return rick.do(t, rick.podman(p, append(args, image, "sh", "-c", tc.script)...)...)
			}, harness.SameExit, harness.SameOutput, harness.Exits(tc.exit), harness.Prints(tc.stdout))
		})
	}
	t.Run("slirp4netns", func(t *testing.T) {
		if noTunnel != "" {
			t.Skip("probe slirp4netns: " + noTunnel)
		}
		box.StartOutside(t)
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			script := "nc -w 20 " + harness.Outside + " " + harness.OutsidePort + " </dev/null | head -n 1; ls /sys/class/net | wc -l"
			return rick.do(t, rick.podman(p, "run", "--rm", "--network", "slirp4netns", image, "sh", "-c", script)...)
		}, harness.SameExit, harness.SameOutput, harness.Exits(0), harness.Prints("^hello\n2\n$"))
	})
	t.Run("pasta", func(t *testing.T) {
		if _, err := exec.LookPath("pasta"); err != nil {
			noTunnel = err.Error()
		}
		if noTunnel != "" {
			t.Skip("probe pasta: " + noTunnel)
		}
		box.StartOutside(t)
		box.MustRun(t, "ip", "route", "add", "default", "via", "203.0.113.2") // pasta copies the network by which the host goes out
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			// The client ends its half of the connection after the server's word. One that does so first meets a mistake of Debian
			// 12's pasta, under every runtime: it hands over the same word again and again, or never the end (docs/ROOTLESS.md).
			script := "mkfifo /tmp/in; nc " + harness.Outside + " " + harness.OutsidePort + " </tmp/in >/tmp/out & exec 3>/tmp/in; " +
				"until grep -q hello /tmp/out; do sleep 0.1; done; exec 3>&-; wait; cat /tmp/out; ls /sys/class/net | wc -l; ip -4 -o addr show out0 | grep -c 203.0.113.1"
			return rick.do(t, rick.podman(p, "run", "--rm", "--network", "ns:"+pasta(t, p), image, "sh", "-c", script)...)
		}, harness.SameExit, harness.SameOutput, harness.Exits(0), harness.Prints("^hello\n2\n1\n$"))
	})
	t.Run("life", func(t *testing.T) {
		harness.SideBySide(t, podmanLife, harness.Same, harness.Prints("^up\n1\n1000\n5\nexited 9\n$"))
	})
}

// tunnel shows the box a tun device that everybody may open, as udev makes it, which slirp4netns needs. It returns why
// that can't be done.
func tunnel(t *testing.T) (why string) {
	t.Helper()
	const device = "/dev/net/tun"
	_, err := exec.LookPath("slirp4netns")
	if err == nil {
		_, err = os.Stat(device)
	}
	if err != nil {
		return err.Error()
	}
	const major, minor = 10, 200
	own := filepath.Join(box.TempDir(t), "tun")
	if err := errors.Join(unix.Mknod(own, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))), os.Chmod(own, 0o666)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(own, device, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(device, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return ""
}

// pasta makes a network namespace with pasta's device in it, and returns its path, where Podman's own view of the mounts
// has it. Podman does the same from 4.4 on; this one is older, and is told of the namespace.
func pasta(t *testing.T, p harness.Peer) string {
	t.Helper()
	namespace := filepath.Join(rick.runtimeDir(), "pasta-"+p.Name)
	unshared := func(script string) harness.Result {
		return rick.do(t, rick.podman(p, "unshare", "sh", "-ec", script, namespace)...)
	}
	t.Cleanup(func() {
		// Without its namespace pasta ends. It holds a file of the mount until then.
		if r := unshared("umount --lazy $0; rm $0; while kill -0 $(cat $0.pid) 2>/dev/null; do sleep 0.05; done; rm -f $0.pid"); r.Exit != 0 {
			t.Error(r)
		}
	})
	r := unshared("touch $0; unshare --net=$0 true; exec pasta --config-net --quiet --pid $0.pid -t none -u none -T none -U none --no-map-gw --netns $0")
	if r.Exit != 0 {
		t.Fatal(r)
	}
	return namespace
}

// podmanLife starts, joins and stops a container.
func podmanLife(t *testing.T, p harness.Peer) harness.Result {
	name := box.ID()
	do := func(args ...string) harness.Result { return rick.do(t, rick.podman(p, args...)...) }
	var out strings.Builder
	if r := do("run", "--detach", "--network", "none", "--name", name, image, "sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done"); r.Exit != 0 {
		t.Fatal(r)
	}
	defer do("rm", "--force", "--time", "0", name)
	out.WriteString(do("logs", name).Stdout)
	out.WriteString(do("exec", name, "sh", "-c", "cat /proc/1/cmdline | tr '\\0' ' ' | grep -c trap").Stdout)
	r := do("exec", "--user", "app", name, "sh", "-c", "id -u; exit 5")
	out.WriteString(r.Stdout + string(rune('0'+r.Exit)) + "\n")
	do("stop", "--time", "10", name)
	out.WriteString(do("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", name).Stdout)
	return harness.Result{Stdout: out.String()}
}
