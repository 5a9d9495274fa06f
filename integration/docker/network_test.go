package docker

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// serve is a web server that answers every request with one word.
const serve = "exec probe serve :80 served"

// probe is the path of integration/probe on the host's side.
func probe(t *testing.T) string {
	t.Helper()
	busybox, err := harness.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(busybox.Rootfs, "bin/probe")
}

func TestPublishedPort(t *testing.T) {
	for i, from := range []string{"loopback", "bridge"} {
		t.Run(from, func(t *testing.T) {
			harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
				port := fmt.Sprint(18080 + i)
				name := engine.Up(t, p, "-p", port+":80", image, "sh", "-c", serve)
				url := "http://127.0.0.1:" + port
				if from == "bridge" {
					url = "http://" + inspect(t, name, "{{.NetworkSettings.IPAddress}}")
				}
				var r harness.Result
				waitFor(t, func() bool {
					r = box.Run(t, harness.Cmd{Args: []string{probe(t), "get", url}})
					return r.Exit == 0
				})
				return result(r.Exit, r.Stdout)
			}, exact(0, "^0\nserved\n"))
		})
	}
}

func TestPeersOnANetwork(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		network := box.ID()
		engine.Must(t, "network", "create", "--subnet", "172.30.9.0/24", network)
		t.Cleanup(func() { engine.Must(t, "network", "rm", network) })
		server := engine.Up(t, p, "--network", network, "--network-alias", "server", image, "sh", "-c", serve)
		_ = server
		var r harness.Result
		waitFor(t, func() bool {
			r = engine.Do(t, "run", "--rm", "--runtime", p.Name, "--network", network, image, "probe", "get", "http://server")
			return r.Exit == 0
		})
		return r
	}, exact(0, "^served\n$"))
}

func TestNetworkConnectedLater(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		network := box.ID()
		engine.Must(t, "network", "create", "--subnet", "172.30.10.0/24", network)
		t.Cleanup(func() { engine.Must(t, "network", "rm", network) })
		name := engine.Up(t, p, image, "sleep", "1000")
		engine.Must(t, "network", "connect", network, name)
		links := engine.Must(t, "exec", name, "ls", "/sys/class/net")
		engine.Must(t, "network", "disconnect", network, name)
		return result(links, engine.Must(t, "exec", name, "ls", "/sys/class/net"))
	}, exact(0, "eth1"))
}

func TestSharedNetworkNamespace(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		first := engine.Up(t, p, image, "sh", "-c", serve)
		var r harness.Result
		waitFor(t, func() bool {
			r = engine.Do(t, "run", "--rm", "--runtime", p.Name, "--network", "container:"+first, image, "probe", "get", "http://127.0.0.1")
			return r.Exit == 0
		})
		return r
	}, exact(0, "^served\n$"))
}

func TestResolverFiles(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		r := engine.Do(t, "run", "--rm", "--runtime", p.Name, "--dns", "192.0.2.53", "--dns-search", "example.test", image, "cat", "/etc/resolv.conf")
		r.Stdout = strings.TrimSpace(r.Stdout)
		return r
	}, exact(0, "(?s)example.test.*192.0.2.53"))
}
