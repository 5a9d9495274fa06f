package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// criEngine is a containerd with CRI, and the registry that it pulls from.
type criEngine struct {
	box                  *harness.Box
	tools, dir           string
	containerd, registry *harness.Daemon
	args, env            []string // of containerd
}

const (
	socket    = "/run/containerd-test.sock"
	nriSocket = "/run/containerd-test/nri.sock"
)

// startCRI starts the registry and containerd. The caller calls stop, also after an error.
func startCRI(b *harness.Box) (*criEngine, error) {
	e := &criEngine{box: b, dir: filepath.Join(b.Dir, "cri")}
	ctx := context.Background()
	programs, err := harness.CurrentContainerd(ctx)
	if err != nil {
		return e, err
	}
	if e.tools, err = harness.CRITools(ctx); err != nil {
		return e, err
	}
	archives, err := images()
	if err != nil {
		return e, err
	}
	crane := filepath.Join(e.tools, "crane")
	e.registry, err = b.StartDaemon("registry", []string{crane, "registry", "serve", "--address", registry},
		[]string{crane, "catalog", "--insecure", registry})
	if err != nil {
		return e, err
	}
	if err := push(crane, archives); err != nil {
		return e, err
	}
	config, err := e.configure()
	if err != nil {
		return e, err
	}
	links := filepath.Join(e.dir, "bin")
	err = errors.Join(os.MkdirAll(links, 0o755), os.Symlink(shimPath(), filepath.Join(links, "containerd-shim-agentsafe-none-v2")))
	if err != nil {
		return e, err
	}
	e.args = []string{filepath.Join(programs, "containerd"), "--config", config}
	e.env = []string{"PATH=" + strings.Join([]string{filepath.Dir(shimPath()), links, programs, os.Getenv("PATH")}, ":")}
	return e, e.startContainerd()
}

func (e *criEngine) startContainerd() (err error) {
	e.containerd, err = e.box.StartDaemon("containerd", e.args, e.crictl("info"), e.env...)
	return err
}

func (e *criEngine) stop() error {
	var err error
	for _, d := range []*harness.Daemon{e.containerd, e.registry} {
		if d != nil {
			err = errors.Join(err, d.Stop())
		}
	}
	return err
}

// crictl is a command line.
func (e *criEngine) crictl(args ...string) []string {
	return append([]string{filepath.Join(e.tools, "crictl"), "--config", filepath.Join(e.dir, "crictl.yaml"), "--timeout", "60s"}, args...)
}

func (e *criEngine) do(t testing.TB, args ...string) harness.Result {
	t.Helper()
	return box.Run(t, harness.Cmd{Args: e.crictl(args...), Timeout: time.Minute})
}

func (e *criEngine) must(t testing.TB, args ...string) string {
	t.Helper()
	return box.MustRun(t, e.crictl(args...)...)
}

// configure writes the configurations of containerd, CNI and crictl, and returns containerd's.
func (e *criEngine) configure() (string, error) {
	config := filepath.Join(e.dir, "config.toml")
	handlers, err := harness.DocBlocks("CONTAINERD.md", "toml")
	if err != nil {
		return "", err
	}
	files := map[string]string{
		config: containerdConfig(e.dir) + strings.Join(handlers, ""),
		filepath.Join(e.dir, "certs.d", "_default", "hosts.toml"): fmt.Sprintf("[host.\"http://%s\"]\n  capabilities = ['pull', 'resolve']\n", registry),
		filepath.Join(e.dir, "cni", "10-test.conflist"):           cniConfig(filepath.Join(e.dir, "ipam")),
		filepath.Join(e.dir, "crictl.yaml"):                       fmt.Sprintf("runtime-endpoint: unix://%[1]s\nimage-endpoint: unix://%[1]s\n", socket),
	}
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			return "", err
		}
	}
	return config, nil
}

// noneByName is the handler of the profile none whose shim's name says so. It has no options: for a container of a pod in a
// user namespace containerd 2.4 refuses options of any type but runc's, and does not ask the shim.
const noneByName = "agentsafe-none-by-name"

// containerdConfig is everything but our handlers, which docs/CONTAINERD.md tells people to add.
func containerdConfig(dir string) string {
	lines := []string{
		"version = 4", fmt.Sprintf("root = '%s/root'", dir), "state = '/run/containerd-test'",
		"[plugins.'io.containerd.server.v1.grpc']", fmt.Sprintf("  address = '%s'", socket),
		"[plugins.'io.containerd.server.v1.ttrpc']", fmt.Sprintf("  address = '%s.ttrpc'", socket),
		"[plugins.'io.containerd.nri.v1.nri']", "  disable = false", fmt.Sprintf("  socket_path = '%s'", nriSocket),
		fmt.Sprintf("  plugin_path = '%[1]s/nri'\n  plugin_config_path = '%[1]s/nri-conf'", dir),
		"[plugins.'io.containerd.cri.v1.images'.pinned_images]", fmt.Sprintf("  sandbox = '%s'", imagePause),
		"[plugins.'io.containerd.cri.v1.images'.registry]", fmt.Sprintf("  config_path = '%s/certs.d'", dir),
		// A root without CAP_SYS_RESOURCE cannot lower scores; the machine's security modules are not what is tested.
		"[plugins.'io.containerd.cri.v1.runtime']", "  restrict_oom_score_adj = true", "  disable_apparmor = true",
		"[plugins.'io.containerd.cri.v1.runtime'.cni]", "  bin_dirs = ['/usr/lib/cni']", fmt.Sprintf("  conf_dir = '%s/cni'", dir),
		"[plugins.'io.containerd.cri.v1.runtime'.containerd]", "  default_runtime_name = 'runc'",
		"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]", "  runtime_type = 'io.containerd.runc.v2'",
		"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes." + sandboxHandler + "-none]",
		"  runtime_type = 'io.containerd.agentsafe.v2'", "  sandboxer = 'shim'",
		"  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes." + sandboxHandler + "-none.options]", "    profile = 'none'",
		"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes." + noneByName + "]", "  runtime_type = 'io.containerd.agentsafe-none.v2'",
		"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes." + gatewayHandler + "]",
		"  runtime_type = 'io.containerd.agentsafe.v2'", "  container_annotations = ['agentsafe.dev/*']",
		"  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes." + gatewayHandler + ".options]", "    profile = 'net'",
		"",
	}
	return strings.Join(lines, "\n")
}

// subnet is the pods'.
const subnet = "10.88.0.0/16"

func cniConfig(dataDir string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "agentsafe-test", "plugins": [
  {"type": "bridge", "bridge": "br-cri", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": %q}},
  {"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "loopback"}]}`, subnet, dataDir)
}

// freePort asks the kernel for a port of the loopback device.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("%v is no TCP address", l.Addr())
	}
	return addr.Port
}
