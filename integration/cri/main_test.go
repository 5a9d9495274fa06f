package cri

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var (
	box    *harness.Box
	engine *criEngine
)

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(ctx context.Context) error {
			if _, err := harness.CurrentContainerd(ctx); err != nil {
				return err
			}
			if _, err := harness.CRITools(ctx); err != nil {
				return err
			}
			_, err := images()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box = b
			if _, err := os.Stat(shimPath()); err != nil {
				return nil, err
			}
			var err error
			if engine, err = startCRI(b); err != nil {
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
