package moby

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var (
	box    *harness.Box
	engine *docker
)

// Names of the runtimes in daemon.json.
const (
	byName = "agentsafe"
	byPath = "agentsafe-path"
	none   = "agentsafe-none"
)

const (
	client = "/usr/bin/docker"
	socket = "/run/docker-test.sock"
	image  = "busybox:test"
)

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(ctx context.Context) error {
			if _, err := harness.Busybox(); err != nil {
				return err
			}
			if _, err := harness.CurrentContainerd(ctx); err != nil {
				return err
			}
			_, err := harness.CurrentDocker(ctx)
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box, engine = b, &docker{}
			if err := engine.start(b); err != nil {
				return nil, errors.Join(err, engine.stop())
			}
			return engine.stop, nil
		},
	})
}

// shimPath is the program under test: AGENTSAFE_TEST_SHIM, or the one in bin.
func shimPath() string {
	if path := os.Getenv("AGENTSAFE_TEST_SHIM"); path != "" {
		return path
	}
	root, err := harness.RepoRoot()
	if err != nil {
		return err.Error()
	}
	return filepath.Join(root, "bin", "containerd-shim-agentsafe-v2")
}

// docker is a running engine.
type docker struct {
	containerd, dockerd *harness.Daemon
	// program, config and env are what it was started with, to start it again.
	args, env []string
}

// config is daemon.json: the runtimes of docs/CONTAINERD.md, one by absolute path, and what keeps the engine to itself.
func config(b *harness.Box, shim string) (map[string]any, error) {
	blocks, err := harness.DocBlocks("CONTAINERD.md", "json")
	if err != nil {
		return nil, err
	}
	var out map[string]any
	if err := json.Unmarshal([]byte(blocks[0]), &out); err != nil {
		return nil, fmt.Errorf("daemon.json of docs/CONTAINERD.md: %w", err)
	}
	runtimes, ok := out["runtimes"].(map[string]any)
	if !ok {
		return nil, errors.New("daemon.json of docs/CONTAINERD.md has no runtimes")
	}
	runtimes[byPath] = map[string]any{"runtimeType": shim}
	maps.Copy(out, map[string]any{
		"cgroup-parent": b.CgroupParent(), "exec-opts": []string{"native.cgroupdriver=cgroupfs"}, "shutdown-timeout": 5,
		"live-restore": true, "bip": "172.31.0.1/24", "userland-proxy": false,
	})
	return out, nil
}

func (e *docker) start(b *harness.Box) error {
	ctx := context.Background()
	if _, err := os.Stat(shimPath()); err != nil {
		return err
	}
	containerd, err := harness.CurrentContainerd(ctx)
	if err != nil {
		return err
	}
	programs, err := harness.CurrentDocker(ctx)
	if err != nil {
		return err
	}
	// As docs/CONTAINERD.md names it; /etc is the box's own.
	const options = "/etc/agentsafe/handler-none.toml"
	file := filepath.Join(b.Dir, "daemon.json")
	settings, err := config(b, shimPath())
	if err != nil {
		return err
	}
	data, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(options), 0o755), os.WriteFile(options, []byte("profile = \"none\"\n"), 0o600), os.WriteFile(file, data, 0o600)); err != nil {
		return err
	}
	command := filepath.Join(b.Dir, "build-command")
	if err := writeBuildCommand(command); err != nil {
		return err
	}
	e.env = []string{
		"PATH=" + strings.Join([]string{filepath.Dir(shimPath()), programs, containerd, os.Getenv("PATH")}, ":"),
		"DOCKER_BUILDKIT_RUNC_COMMAND=" + command,
	}
	toml := filepath.Join(b.Dir, "containerd.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = '/run/containerd-test'\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n"+
		"[grpc]\n  address = '/run/containerd-test.sock'\n[ttrpc]\n  address = '/run/containerd-test.sock.ttrpc'\n", filepath.Join(b.Dir, "containerd"))
	if err := os.WriteFile(toml, []byte(text), 0o600); err != nil {
		return err
	}
	e.containerd, err = b.StartDaemon("containerd", []string{filepath.Join(containerd, "containerd"), "--config", toml},
		[]string{filepath.Join(containerd, "ctr"), "--address", "/run/containerd-test.sock", "version"}, e.env...)
	if err != nil {
		return err
	}
	e.args = []string{
		filepath.Join(programs, "dockerd"), "--config-file", file, "--containerd", "/run/containerd-test.sock",
		"--containerd-namespace", b.Tag, "--containerd-plugins-namespace", b.Tag + "-plugins",
		"--data-root", filepath.Join(b.Dir, "docker"), "--exec-root", "/run/docker-test", "--pidfile", "/run/docker-test.pid",
		"--host", "unix://" + socket,
	}
	if err := e.startDaemon(b); err != nil {
		return err
	}
	busybox, err := harness.Busybox()
	if err != nil {
		return err
	}
	if out, err := exec.Command(client, "-H", "unix://"+socket, "load", "--quiet", "--input", busybox.Archive).CombinedOutput(); err != nil {
		return fmt.Errorf("load image: %w\n%s", err, out)
	}
	return nil
}

func (e *docker) startDaemon(b *harness.Box) (err error) {
	e.dockerd, err = b.StartDaemon("dockerd", e.args, []string{client, "-H", "unix://" + socket, "version"}, e.env...)
	return err
}

func (e *docker) stop() error {
	var err error
	for _, d := range []*harness.Daemon{e.dockerd, e.containerd} {
		if d != nil {
			err = errors.Join(err, d.Stop())
		}
	}
	// What a dockerd that was killed leaves, and its successor does not take away.
	unix.Unmount(filepath.Join(box.Dir, "docker"), unix.MNT_DETACH)
	return errors.Join(err, os.RemoveAll("/run/docker-test/libnetwork"))
}

func (e *docker) do(t testing.TB, args ...string) harness.Result {
	t.Helper()
	return box.Run(t, harness.Cmd{Args: append([]string{client, "-H", "unix://" + socket}, args...), Timeout: time.Minute})
}

func (e *docker) must(t testing.TB, args ...string) string {
	t.Helper()
	return box.MustRun(t, append([]string{client, "-H", "unix://" + socket}, args...)...)
}

// up starts a container in the background; the end of the test removes it.
func (e *docker) up(t testing.TB, runtime string, args ...string) string {
	t.Helper()
	name := box.ID()
	t.Cleanup(func() { e.do(t, "rm", "--force", "--volumes", name) })
	e.must(t, append([]string{"run", "--detach", "--runtime", runtime, "--name", name}, args...)...)
	return name
}
