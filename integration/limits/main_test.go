package limits

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

const image = "busybox:test"

// layerStore is where the programs keep layers. In the box /var/lib is an overlay, which can't hold another one's upper
// directory, so a directory of the machine's own file system is bound there.
const layerStore = "/var/lib/agentsafe/layers"

var (
	box        *harness.Box
	docker     *harness.Docker
	containerd *harness.Containerd
	podman     *harness.Podman
	rootfs     string
	reloaded   sync.Once
)

// policies are the profiles of these tests, by name: what each adds to agent.
func policies() map[string]string {
	return map[string]string{
		"wall":  "limits: {wallClock: 1500ms}\nevidence: {mode: \"on\"}",
		"cpu":   "limits: {cpuTime: 1s}\nevidence: {mode: \"on\"}",
		"few":   "limits: {memory: 48MiB, pids: 24, openFiles: 64, wallClock: 1m, cpus: 0.5}\nevidence: {mode: \"on\"}",
		"execs": "exec: {wallClock: 1s}",
		"ev":    `evidence: {mode: "on"}`,
		"words": "limits: {outputBytes: 4KiB}\nevidence: {mode: \"on\"}",
		"drop":  `limits: {outputBytes: 4KiB, onOutput: discard}`,
		"gaps":  `evidence: {mode: "on", onFull: gap}`,
		"room":  "filesystem: {workspace: {mode: overlay}}\nlimits: {layerBytes: 4MiB}\nevidence: {mode: \"on\"}",
		"sends": "network: {mode: gateway, dialFrom: host, allow: [\"" + harness.Outside + "/32:" + harness.OutsidePort + "\"]}\nlimits: {egressBytes: 64KiB}\nevidence: {mode: \"on\"}",
	}
}

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(context.Context) error {
			_, err := harness.Busybox()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box = b
			busybox, err := harness.Busybox()
			if err != nil {
				return nil, err
			}
			rootfs = busybox.Rootfs
			if err := installPolicies(); err != nil {
				return nil, err
			}
			backing := filepath.Join(b.Dir, "layers")
			if err := errors.Join(os.MkdirAll(backing, 0o700), os.MkdirAll(layerStore, 0o700)); err != nil {
				return nil, err
			}
			if err := unix.Mount(backing, layerStore, "", unix.MS_BIND, ""); err != nil {
				return nil, fmt.Errorf("bind %s: %w", layerStore, err)
			}
			if docker, err = b.StartDocker(); err != nil {
				return nil, err
			}
			if containerd, err = b.StartContainerd(); err != nil {
				return docker.Stop, err
			}
			stop := func() error {
				return errors.Join(containerd.Stop(), docker.Stop(), unix.Unmount(layerStore, unix.MNT_DETACH))
			}
			if err := docker.Import(busybox.Tar, image); err != nil {
				return stop, err
			}
			podman = &harness.Podman{Box: b}
			if err := podman.Load(busybox.Archive); err != nil {
				return stop, err
			}
			return stop, containerd.Import(busybox.Archive)
		},
	})
}

// program is one of ours.
func program(name string) string {
	path, err := harness.RuntimePath()
	if err != nil {
		return err.Error()
	}
	return filepath.Join(filepath.Dir(path), name)
}

// installPolicies makes the profiles known, and for each a runtime of Docker's and a program for containerd, which both
// choose a runtime by name only.
func installPolicies() error {
	for name, text := range policies() {
		file := filepath.Join(box.Dir, name+".yaml")
		text = "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: " + name + "}\nextends: agent\n" + text + "\n"
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
		if out, err := exec.Command(program("agentsafectl"), "profile", "install", file).CombinedOutput(); err != nil {
			return fmt.Errorf("install profile %s: %w\n%s", name, err, out)
		}
		script := "#!/bin/sh\nexec " + program("agentsafe") + " --profile " + name + ` "$@"` + "\n"
		if err := os.WriteFile(wrapper(name), []byte(script), 0o755); err != nil {
			return err
		}
		// containerd finds shims beside the address of its socket's PATH; by absolute path it needs no PATH.
		if err := os.Symlink(program("containerd-shim-agentsafe-v2"), shimPath(name)); err != nil {
			return err
		}
	}
	return nil
}

func wrapper(profile string) string { return filepath.Join(box.Dir, "agentsafe-"+profile) }
func shimPath(profile string) string {
	return filepath.Join(box.Dir, "containerd-shim-agentsafe-"+profile+"-v2")
}

// reloadDocker adds a runtime for each profile to the running daemon.
func reloadDocker(t testing.TB) {
	t.Helper()
	config := filepath.Join(box.Dir, "daemon.json")
	data, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	runtimes := all["runtimes"].(map[string]any)
	for name := range policies() {
		runtimes[name] = map[string]any{"path": program("agentsafe"), "runtimeArgs": []string{"--profile", name}}
	}
	if data, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, data, 0o644); err != nil {
		t.Fatal(err)
	}
	pid, err := os.ReadFile("/run/docker-test.pid")
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscan(string(pid), &n); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(n, unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if strings.Contains(docker.Must(t, "info", "--format", "{{json .Runtimes}}"), `"wall"`) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("docker does not know the new runtimes")
}
