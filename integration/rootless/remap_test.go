package rootless

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// remapped is a Docker engine that gives containers a user namespace with rick's subordinate ids.
type remapped struct {
	d    *harness.Daemon
	host string
}

func startRemapped() (*remapped, error) {
	dir := filepath.Join(box.Dir, "remap")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"runtimes":       map[string]any{"agentsafe": map[string]any{"path": filepath.Join(installed, "agentsafe")}},
		"userns-remap":   rick.name,
		"storage-driver": "overlay2", "cgroup-parent": box.CgroupParent(), "exec-opts": []string{"native.cgroupdriver=cgroupfs"},
		"shutdown-timeout": 5, "bridge": "none",
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "daemon.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, err
	}
	e := &remapped{host: "unix:///run/docker-remap.sock"}
	e.d, err = box.StartDaemon("dockerd-remap", []string{
		"/usr/sbin/dockerd", "--config-file", file, "--data-root", filepath.Join(dir, "data"), "--exec-root", "/run/docker-remap",
		"--pidfile", "/run/docker-remap.pid", "--host", e.host,
	}, e.args("version"))
	return e, err
}

func (e *remapped) args(args ...string) []string {
	return append([]string{"/usr/bin/docker", "-H", e.host}, args...)
}

// TestUsernsRemap runs containers of an engine with userns-remap, under runc and under agentsafe.
func TestUsernsRemap(t *testing.T) {
	busybox, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	e, err := startRemapped()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(e.d.Stop(), os.RemoveAll("/run/docker-remap")); err != nil {
			t.Error(err)
		}
	}()
	if out, err := exec.Command(e.args("import", busybox.Tar, image)[0], e.args("import", busybox.Tar, image)[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("import: %v: %s", err, out)
	}
	secret := box.TempDir(t)
	if err := os.WriteFile(filepath.Join(secret, "key"), []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		flags  []string
		script string
		exit   int
		stdout string
	}{
		{"ids", nil, "id -u; cat /proc/self/uid_map; touch /x; stat -c %u /x; exit 3", 3, `^0\n\s+0\s+200000\s+65536\n0\n$`},
		{"a user of the image", []string{"--user", "app"}, "id -u; touch /tmp/x; stat -c %u /tmp/x; cat /etc/passwd >/dev/null", 0, "^1000\n1000\n$"},
		{"devices and limits", []string{"--memory", "64m", "--pids-limit", "30"}, "echo x >/dev/null; head -c 3 /dev/zero | wc -c; cat /sys/fs/cgroup/memory/memory.limit_in_bytes", 0, "^3\n67108864\n$"},
		{"root of the host is nobody", []string{"--volume", secret + ":/v:ro"}, "stat -c %u /v/key; cat /v/key", 1, "^65534\n$"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				args := append([]string{"run", "--rm", "--runtime", p.Name, "--network", "none"}, tc.flags...)
				return box.Run(t, harness.Cmd{Args: e.args(append(args, image, "sh", "-c", tc.script)...)})
			}, harness.SameExit, harness.SameOutput, harness.Exits(tc.exit), harness.Prints(tc.stdout))
		})
	}
	t.Run("exec", func(t *testing.T) {
		harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
			name := box.ID()
			box.MustRun(t, e.args("run", "--detach", "--runtime", p.Name, "--network", "none", "--name", name, image, "sleep", "1000")...)
			defer box.MustRun(t, e.args("rm", "--force", name)...)
			var out strings.Builder
			for _, args := range [][]string{{"exec", name, "id", "-u"}, {"exec", "--user", "app", name, "sh", "-c", "id -u; cat /proc/self/gid_map; exit 5"}} {
				r := box.Run(t, harness.Cmd{Args: e.args(args...)})
				fmt.Fprintln(&out, r.Stdout, r.Exit)
			}
			return harness.Result{Stdout: out.String()}
		}, harness.Same, harness.Prints(`^0\n 0\n1000\n\s+0\s+200000\s+65536\n 5\n$`))
	})
}
