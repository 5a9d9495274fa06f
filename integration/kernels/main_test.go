package kernels

import (
	"context"
	"errors"
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
			_, berr := harness.Busybox()
			_, werr := without()
			return errors.Join(berr, werr)
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box = b
			return nil, nil
		},
	})
}

// without builds the program that takes system calls away.
func without() (string, error) {
	repo, err := harness.RepoRoot()
	if err != nil {
		return "", err
	}
	recipe := ""
	for _, name := range []string{"main.go", "filter_unsafe.go"} {
		data, err := os.ReadFile(filepath.Join(repo, "integration", "kernels", "without", name))
		if err != nil {
			return "", err
		}
		recipe += string(data)
	}
	dir, err := harness.Cached("without", recipe, func(dir string) error {
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "without"), "./integration/kernels/without")
		build.Dir, build.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return errors.New(string(out))
		}
		return nil
	})
	return filepath.Join(dir, "without"), err
}
