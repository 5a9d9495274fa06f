package shim

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var box *harness.Box

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(ctx context.Context) error {
			if _, err := harness.Busybox(); err != nil {
				return err
			}
			_, err := harness.CurrentContainerd(ctx)
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
