package harness

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
)

// Daemon is an engine's long-running process.
type Daemon struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan error
}

// StartDaemon starts args, with env added to the environment and its output in Dir/NAME.log, and waits until the
// command ready succeeds. The caller calls Stop.
func (b *Box) StartDaemon(name string, args, ready []string, env ...string) (*Daemon, error) {
	d := &Daemon{name: name, log: filepath.Join(b.Dir, name+".log"), done: make(chan error, 1)}
	f, err := os.OpenFile(d.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d.cmd = exec.Command(args[0], args[1:]...)
	d.cmd.Stdout, d.cmd.Stderr = f, f
	d.cmd.Env = append(os.Environ(), env...)
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { d.done <- d.cmd.Wait() }()
	deadline := time.Now().Add(Stretch(time.Minute))
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := exec.CommandContext(ctx, ready[0], ready[1:]...).Run()
		cancel()
		if err == nil {
			return d, nil
		}
		select {
		case err := <-d.done:
			return nil, fmt.Errorf("%s ended: %w\n%s", name, err, d.tail())
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = d.Stop() // the first error is the one to tell
			return nil, fmt.Errorf("%s is not ready: %w\n%s", name, err, d.tail())
		}
	}
}

// Log is the end of what the daemon has written.
func (d *Daemon) Log() string { return string(d.tail()) }

// Pid is the daemon's process id.
func (d *Daemon) Pid() int { return d.cmd.Process.Pid }

func (d *Daemon) tail() []byte {
	data, _ := os.ReadFile(d.log)
	return tail(data)
}

// said counts how often a text is in the log.
func (d *Daemon) said(text string) int {
	data, _ := os.ReadFile(d.log)
	return strings.Count(string(data), text)
}

// Stop asks the daemon to end and waits; after half a minute it is killed, which is an error.
func (d *Daemon) Stop() error {
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-d.done: //nolint:errcheck // how it ended is of no interest
		return nil
	case <-time.After(30 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.done //nolint:errcheck // it was killed
		return fmt.Errorf("%s did not end within 30 s of SIGTERM\n%s", d.name, d.tail())
	}
}

// Kill ends the daemon without giving it time to tidy up.
func (d *Daemon) Kill() error {
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-d.done //nolint:errcheck // how it ended is known
	return nil
}

// Docker is a Docker engine on a private socket that knows the runtimes runc, agentsafe and agentsafe-none, which is
// agentsafe under the profile none.
type Docker struct {
	Box  *Box
	host string
	d    *Daemon
	// config is daemon.json.
	config map[string]any
	// killed says that a daemon had no time to tidy up.
	killed bool
}

// Debian's, by path: a machine may have another client first in PATH.
const (
	dockerClient = "/usr/bin/docker"
	dockerDaemon = "/usr/sbin/dockerd"
)

// StartDocker starts dockerd with the runtime under test. The caller calls Stop.
func (b *Box) StartDocker() (*Docker, error) {
	runtime, err := RuntimePath()
	if err != nil {
		return nil, err
	}
	e := &Docker{Box: b, host: "unix:///run/docker-test.sock", config: map[string]any{
		"runtimes": map[string]any{
			"agentsafe":       map[string]any{"path": runtime},
			"agentsafe-none":  map[string]any{"path": runtime, "runtimeArgs": []string{"--profile", "none"}},
			"agentsafe-build": map[string]any{"path": runtime, "runtimeArgs": []string{"--profile", "build"}},
		},
		"storage-driver":   "overlay2",
		"cgroup-parent":    b.CgroupParent(),
		"exec-opts":        []string{"native.cgroupdriver=cgroupfs"},
		"shutdown-timeout": 5,
		"experimental":     true,            // checkpoints
		"bip":              "172.30.0.1/24", // given, so that dockerd does not look for a free range on a machine that routes them all
	}}
	if err := e.writeConfig(); err != nil {
		return nil, err
	}
	return e, e.start()
}

func (e *Docker) configFile() string { return filepath.Join(e.Box.Dir, "daemon.json") }

func (e *Docker) writeConfig() error {
	data, err := json.Marshal(e.config)
	if err != nil {
		return err
	}
	return os.WriteFile(e.configFile(), data, 0o644)
}

func (e *Docker) start() (err error) {
	args := []string{
		dockerDaemon, "--config-file", e.configFile(), "--data-root", filepath.Join(e.Box.Dir, "docker"), "--exec-root", "/run/docker-test",
		"--pidfile", "/run/docker-test.pid", "--host", e.host,
	}
	e.d, err = e.Box.StartDaemon("dockerd", args, e.Args("version"))
	return err
}

// Host is the daemon's address, as DOCKER_HOST has it.
func (e *Docker) Host() string { return e.host }

// Runtimes is the key runtimes of daemon.json with more of agentsafe's: their global flags by name.
func (e *Docker) Runtimes(more map[string][]string) map[string]any {
	out := maps.Clone(e.config["runtimes"].(map[string]any)) //nolint:forcetypeassert // as it is made above
	path := out["agentsafe"].(map[string]any)["path"]        //nolint:forcetypeassert // likewise
	for name, flags := range more {
		out[name] = map[string]any{"path": path, "runtimeArgs": flags}
	}
	return out
}

// Configure sets keys of daemon.json, nil removing one, and has the daemon read it again. Only what dockerd can change
// while it runs takes effect: runtimes, default-runtime, live-restore.
func (e *Docker) Configure(t testing.TB, keys map[string]any) {
	t.Helper()
	for k, v := range keys {
		if e.config[k] = v; v == nil {
			delete(e.config, k)
		}
	}
	if err := e.writeConfig(); err != nil {
		t.Fatal(err)
	}
	const read = "Reloaded configuration:"
	before := e.d.said(read)
	if err := unix.Kill(e.d.Pid(), unix.SIGHUP); err != nil {
		t.Fatalf("reload dockerd: %v", err)
	}
	for deadline := time.Now().Add(30 * time.Second); e.d.said(read) == before; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("dockerd does not read its configuration:\n%s", e.Log())
		}
	}
}

// Down ends the daemon alone: by SIGTERM or, with kill, SIGKILL. Again starts it.
func (e *Docker) Down(t testing.TB, kill bool) {
	t.Helper()
	if kill {
		e.killed = true
		if err := e.d.Kill(); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := e.Stop(); err != nil {
		t.Fatal(err)
	}
}

// Again starts the daemon after Down.
func (e *Docker) Again(t testing.TB) {
	t.Helper()
	if err := e.start(); err != nil {
		t.Fatal(err)
	}
}

// Args is the command line of the docker client.
func (e *Docker) Args(args ...string) []string {
	return append([]string{dockerClient, "-H", e.host}, args...)
}

// Do runs the docker client.
func (e *Docker) Do(t testing.TB, args ...string) Result {
	t.Helper()
	return e.Box.Run(t, Cmd{Args: e.Args(args...)})
}

// Must runs the docker client and wants success.
func (e *Docker) Must(t testing.TB, args ...string) string {
	t.Helper()
	return e.Box.MustRun(t, e.Args(args...)...)
}

// Import makes an image of a tar.
func (e *Docker) Import(tar, name string) error {
	return run(exec.Command(dockerClient, "-H", e.host, "import", tar, name))
}

// Up starts a container in the background, to be removed when the test ends, and returns its name.
func (e *Docker) Up(t testing.TB, p Peer, args ...string) string {
	t.Helper()
	name := e.Box.ID()
	t.Cleanup(func() { e.Do(t, "rm", "--force", "--volumes", name) })
	e.Must(t, append([]string{"run", "--detach", "--runtime", p.Name, "--name", name}, args...)...)
	return name
}

// Log is the daemon's log so far.
func (e *Docker) Log() string { return string(e.d.tail()) }

// Stop ends the engine. What a daemon that was killed has left is removed: its mount of the data root, its sockets.
func (e *Docker) Stop() error {
	err := e.d.Stop()
	if !e.killed {
		return err
	}
	if uerr := unix.Unmount(filepath.Join(e.Box.Dir, "docker"), unix.MNT_DETACH); !errors.Is(uerr, unix.EINVAL) {
		err = errors.Join(err, uerr)
	}
	// Names of network namespaces that the killed daemon had to let go. One that still holds a namespace is busy, and told
	// with what was left behind.
	names, gerr := filepath.Glob("/run/docker-test/netns/*")
	for _, name := range names {
		if rerr := os.Remove(name); !errors.Is(rerr, unix.EBUSY) {
			err = errors.Join(err, rerr)
		}
	}
	return errors.Join(err, gerr, os.RemoveAll("/run/docker-test/libnetwork"))
}

// Podman drives podman with private storage.
type Podman struct{ Box *Box }

// Args is a podman command line; command is its subcommand, for which p becomes `--runtime`.
func (e *Podman) Args(p Peer, args ...string) []string {
	dir := filepath.Join(e.Box.Dir, "podman")
	return append([]string{
		"/usr/bin/podman", "--root", dir, "--runroot", "/run/podman-test", "--tmpdir", "/run/podman-test-tmp",
		"--cgroup-manager=cgroupfs", "--events-backend=none", "--storage-driver=overlay", "--runtime", p.Path,
	}, args...)
}

// Do runs podman with runtime p.
func (e *Podman) Do(t testing.TB, p Peer, args ...string) Result {
	t.Helper()
	return e.Box.Run(t, Cmd{Args: e.Args(p, args...)})
}

// Must runs podman and wants success.
func (e *Podman) Must(t testing.TB, p Peer, args ...string) string {
	t.Helper()
	return e.Box.MustRun(t, e.Args(p, args...)...)
}

// Load loads an image that docker save could have written.
func (e *Podman) Load(archive string) error {
	args := e.Args(Peer{"runc", "runc"}, "load", "--quiet", "--input", archive)
	return run(exec.Command(args[0], args[1:]...))
}

// Containerd is a containerd with its `ctr` client and runc's shim.
type Containerd struct {
	Box *Box
	d   *Daemon
}

// StartContainerd starts containerd. The caller calls Stop.
func (b *Box) StartContainerd() (*Containerd, error) {
	config := filepath.Join(b.Dir, "containerd.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = \"/run/containerd-test\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"+
		"[grpc]\n  address = \"/run/containerd-test.sock\"\n[ttrpc]\n  address = \"/run/containerd-test.sock.ttrpc\"\n", filepath.Join(b.Dir, "containerd"))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	e := &Containerd{Box: b}
	var err error
	e.d, err = b.StartDaemon("containerd", []string{"/usr/bin/containerd", "--config", config}, e.Args("version"))
	return e, err
}

// Args is a ctr command line. The namespace is the box's tag, which makes it part of the cgroup paths.
func (e *Containerd) Args(args ...string) []string {
	return append([]string{"/usr/bin/ctr", "--address", "/run/containerd-test.sock", "--namespace", e.Box.Tag}, args...)
}

// RunArgs is a ctr command line that runs command in image under p.
func (e *Containerd) RunArgs(p Peer, flags []string, image, id string, command ...string) []string {
	args := e.Args("run", "--runtime", "io.containerd.runc.v2", "--runc-binary", p.Path, "--runc-root", "/run/ctr-"+p.Name)
	return append(append(append(args, flags...), image, id), command...)
}

// Do runs ctr.
func (e *Containerd) Do(t testing.TB, args ...string) Result {
	t.Helper()
	return e.Box.Run(t, Cmd{Args: e.Args(args...)})
}

// Must runs ctr and wants success.
func (e *Containerd) Must(t testing.TB, args ...string) string {
	t.Helper()
	return e.Box.MustRun(t, e.Args(args...)...)
}

// Import imports an image that docker save could have written.
func (e *Containerd) Import(archive string) error {
	args := e.Args("images", "import", archive)
	return run(exec.Command(args[0], args[1:]...))
}

// Stop ends containerd.
func (e *Containerd) Stop() error { return e.d.Stop() }
