package shim

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var box *harness.Box

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(context.Context) error {
			if _, err := harness.Busybox(); err != nil {
				return err
			}
			_, err := currentContainerd()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box = b
			_, err := os.Stat(shimPath())
			return nil, err
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

// currentContainerd builds the containerd, ctr and runc shim that integration/engines/containerd names; it returns
// their directory.
func currentContainerd() (string, error) {
	root, err := harness.RepoRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "integration", "engines", "containerd")
	recipe, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	return harness.Cached("containerd", "containerd, version 1\n"+string(recipe), func(dir string) error {
		const commands = "github.com/containerd/containerd/v2/cmd/"
		build := exec.Command("go", "build", "-mod=readonly", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/",
			commands+"containerd", commands+"ctr", commands+"containerd-shim-runc-v2")
		build.Dir, build.Env = module, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build containerd: %w\n%s", err, out)
		}
		return nil
	})
}
