package network

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var (
	box     *harness.Box
	outside *world
)

func TestMain(m *testing.M) {
	if url := os.Getenv("AGENTSAFE_TEST_CLIENT"); url != "" {
		os.Exit(client(url))
	}
	harness.Main(m, harness.Options{
		Prepare: func(ctx context.Context) error {
			for _, build := range []func(context.Context) (string, error){harness.CurrentContainerd, harness.CurrentDocker, harness.CurrentDockerCLI, harness.H3Client} {
				if _, err := build(ctx); err != nil {
					return err
				}
			}
			fetchAgents(ctx)
			_, err := harness.Busybox()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			var err error
			box = b
			if outside, err = newWorld(); err != nil {
				return nil, err
			}
			return outside.close, nil
		},
	})
}

// ctl is the agentsafectl beside the runtime under test.
func ctl(t testing.TB) string {
	t.Helper()
	path, err := harness.RuntimePath()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(filepath.Dir(path), "agentsafectl")
}

// profileFile writes a profile whose network part is the argument, with two spaces before each line.
func profileFile(t testing.TB, network string) string {
	t.Helper()
	path := filepath.Join(box.TempDir(t), "p.yaml")
	text := "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: net}\nextends: agent\nnetwork:\n" + network
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// task is one run of agentsafectl.
type task struct {
	harness.Result
	out struct {
		ExitCode       int
		Stdout, Stderr string
	}
}

// run runs a shell script on the host's programs under a profile with this network part.
func run(t testing.TB, network, script string) task {
	t.Helper()
	folder := box.TempDir(t)
	if err := outside.folder(folder); err != nil {
		t.Fatal(err)
	}
	return runIn(t, folder, network, script)
}

// runIn runs it in a folder.
func runIn(t testing.TB, folder, network, script string) task {
	t.Helper()
	args := []string{ctl(t), "run", "--json", "--quiet", "--profile", profileFile(t, network), "--workspace", folder, "--", "sh", "-c", script}
	r := task{Result: box.Run(t, harness.Cmd{Args: args})}
	if err := json.Unmarshal([]byte(r.Stdout), &r.out); err != nil {
		t.Fatalf("no result: %v\n%v", err, r.Result)
	}
	return r
}

func (r task) String() string {
	return fmt.Sprintf("exit %d\nstdout: %s\nstderr: %s", r.out.ExitCode, r.out.Stdout, r.out.Stderr)
}

// rules is a network part that allows the given rules, dialling from the host.
func rules(list ...string) string {
	return "  mode: gateway\n  dialFrom: host\n  allow: [\"" + strings.Join(list, `", "`) + "\"]\n"
}
