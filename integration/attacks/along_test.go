package attacks

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// mounted mounts something until the test ends.
func mounted(t *testing.T, source, target, kind string, flags uintptr) {
	t.Helper()
	if err := os.MkdirAll(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", target, err)
		}
	})
}

// The root file system is the host's own, by its name or by another, or holds an engine's socket (podman run --rootfs, ctr
// run --rootfs). Seen with it not judged: the container has read the host's password hashes.
func TestAttack_HostAsRoot(t *testing.T) {
	for _, a := range everyWay(t, "") {
		second, jail := filepath.Join(box.TempDir(t), "all"), filepath.Join(box.TempDir(t), "jail")
		mounted(t, "/", second, "", unix.MS_BIND)
		listens(t, "dockerd", filepath.Join(jail, "srv/api"))
		for _, root := range []string{"/", "/etc", "/run", second, jail} {
			b := a.bundle(t, all(harness.Sh("cat /etc/shadow /shadow"), func(s *specs.Spec) { s.Root.Path = root }), nil)
			a.refused(t, a.do(t, "run", "--bundle", b.Dir, b.ID), "root.path ", "host: {mounts: [")
		}
	}
}

// A folder that is mounted, or the root file system, has mounts of the host's in it, as a chroot has: root in the container
// needs no capability to write to a proc that nothing masks. Seen with them not looked at: the container has set the
// program that the host's kernel starts for a core dump.
func TestAttack_MountsBelowASource(t *testing.T) {
	for _, a := range everyWay(t, "") {
		for name, mount := range map[string]func(jail string){
			"with the proc":            func(jail string) { mounted(t, "proc", jail+"/a b/proc", "proc", 0) },
			"with the devpts":          func(jail string) { mounted(t, "/dev/pts", jail+"/terminals", "", unix.MS_BIND) },
			"which is the host's /etc": func(jail string) { mounted(t, "/etc", jail+"/e", "", unix.MS_BIND) },
			"which is the host's /":    func(jail string) { mounted(t, "/", jail+"/all", "", unix.MS_BIND) },
			"":                         func(jail string) { mounted(t, "tmpfs", jail+"/scratch", "tmpfs", 0) },
		} {
			jail := filepath.Join(box.TempDir(t), "jail")
			mount(jail)
			volume := func(option string) func(*specs.Spec) {
				return all(harness.Sh("ls -R /v"), func(s *specs.Spec) {
					s.Mounts = append(s.Mounts, specs.Mount{Destination: "/v", Type: "bind", Source: jail, Options: []string{option}})
				})
			}
			r := a.run(t, volume("rbind"), nil)
			if name == "" {
				if r.Exit != 0 || !strings.Contains(r.Stdout, "scratch") {
					t.Errorf("a file system that is nobody's:\n%v", r)
				}
				continue
			}
			a.refused(t, r, "(/v) from "+jail, name, "host: {mounts: ["+jail)
			if r := a.run(t, volume("bind"), nil); r.Exit != 0 || strings.Contains(r.Stdout, "shadow") || strings.Contains(r.Stdout, "kcore") {
				t.Errorf("%s: without what is mounted in it:\n%v", name, r)
			}
			b := a.bundle(t, nil, nil)
			mount(b.Rootfs() + "/jail")
			a.refused(t, a.do(t, "run", "--bundle", b.Dir, b.ID), "root.path "+b.Rootfs(), name)
		}
	}
}

// Whoever may ask an engine for more of a running container's limits is not who chose its profile. Seen with the request
// written as it came: no limit.
func TestAttack_LimitsByUpdate(t *testing.T) {
	const pids, memory = 64, 64 << 20
	a := open(t, "")
	b := a.up(t, func(s *specs.Spec) {
		s.Annotations = map[string]string{"agentsafe.dev/pids": "64", "agentsafe.dev/memory": "64MiB", "agentsafe.dev/cpus": "0.5"}
	}, "sleep", "1000")
	for _, ask := range [][]string{
		{"--pids-limit", "-1"}, {"--pids-limit", "5000"}, {"--memory", "-1", "--memory-swap", "-1"}, {"--memory", "10g"},
		{"--cpu-quota", "-1"}, {"--cpu-period", "10000"},
	} {
		a.must(t, append(append([]string{"update"}, ask...), b.ID)...)
		var stats struct {
			Data struct {
				Pids   struct{ Limit uint64 }
				Memory struct{ Usage struct{ Limit uint64 } }
			}
		}
		out := a.must(t, "events", "--stats", b.ID).Stdout
		if err := json.Unmarshal([]byte(out), &stats); err != nil || stats.Data.Pids.Limit != pids || stats.Data.Memory.Usage.Limit != memory {
			t.Errorf("after update %v: %v: %s", ask, err, out)
		}
		r := a.must(t, "exec", b.ID, "sh", "-c", "cd /sys/fs/cgroup; cat cpu.max 2>/dev/null || cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us")
		if got := strings.Join(strings.Fields(r.Stdout), " "); got != "50000 100000" && got != "5000 10000" {
			t.Errorf("after update %v: cpu %s, want half a processor", ask, got)
		}
	}
	a.must(t, "update", "--pids-limit", "20", b.ID) // less is the engine's business
}
