package hardening

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/integration/harness"
)

const portsProfile = `apiVersion: agentsafe.dev/v1
kind: Profile
metadata: {name: ports}
extends: agent
network: {connectPorts: [8080], listenPorts: [8080-8081]}
`

// serving waits until the server that is started beside it answers.
const serving = `until probe dial tcp 127.0.0.1:8080 >/dev/null 2>&1; do sleep 0.1; done; `

const portCalls = `for p in 8080 8081; do echo "dial $p: $(probe dial tcp 127.0.0.1:$p 2>/dev/null)"; done
echo "serve 8080: $(probe serve 127.0.0.1:8080 x 2>/dev/null)"; `

// serveOther would serve for ever if it were allowed.
const serveOther = `echo "serve 80: $(probe serve 127.0.0.1:80 x 2>/dev/null)"`

const (
	portsRefused = "dial 8080: ok\ndial 8081: EACCES\nserve 8080: EADDRINUSE\nserve 80: EACCES\n"
	portsOpen    = "dial 8080: ok\ndial 8081: ECONNREFUSED\nserve 8080: EADDRINUSE\n"
)

// TestPorts connects and binds in a container and in an exec of it, with lists of ports and without. Nothing but
// Landlock answers EACCES there: the same calls without the lists meet the kernel's own answers.
func TestPorts(t *testing.T) {
	const abiPorts = 4
	if abi := landlockABI(t); abi < abiPorts {
		t.Skipf("probe landlock: ABI %d, ports need %d", abi, abiPorts)
	}
	_, p := harness.Peers(t)
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(box.TempDir(t), "ports.yaml")
	if err := os.WriteFile(file, []byte(portsProfile), 0o644); err != nil {
		t.Fatal(err)
	}
	box.MustRun(t, filepath.Join(root, "bin/agentsafectl"), "profile", "install", file)
	want := func(t *testing.T, r harness.Result, want string) {
		t.Helper()
		if r.Stdout != want {
			t.Errorf("want\n%s\ngot\n%v", want, r)
		}
	}
	serve := []string{"probe", "serve", "127.0.0.1:8080", "x"}
	t.Run("by a profile", func(t *testing.T) {
		d := box.Bare(t, p)
		bundle := box.Bundle(t, func(s *specs.Spec) { s.Process.Args = serve })
		box.MustRun(t, p.Path, "--root", d.Root, "--profile", "ports", "run", "--detach", "--bundle", bundle.Dir, bundle.ID)
		want(t, d.Do(t, "exec", bundle.ID, "sh", "-c", serving+portCalls+serveOther), portsRefused)
	})
	flags := []string{"--network", "none", "-e", "AGENTSAFE_CONNECT_PORTS=8080", "-e", "AGENTSAFE_LISTEN_PORTS=8080,8081"}
	t.Run("by variables under Docker", func(t *testing.T) {
		args := append([]string{"run", "--rm", "--runtime", p.Name}, flags...)
		want(t, engine.Do(t, append(args, image, "sh", "-c", strings.Join(serve, " ")+" & "+serving+portCalls+serveOther)...), portsRefused)
	})
	t.Run("by variables in an exec", func(t *testing.T) {
		name := engine.Up(t, p, append(append(slices.Clone(flags), image), serve...)...)
		want(t, engine.Do(t, "exec", name, "sh", "-c", serving+portCalls+serveOther), portsRefused)
	})
	t.Run("without", func(t *testing.T) {
		name := engine.Up(t, p, append([]string{"--network", "none", image}, serve...)...)
		want(t, engine.Do(t, "exec", name, "sh", "-c", serving+portCalls), portsOpen)
	})
}
