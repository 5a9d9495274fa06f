package realwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var (
	box    *harness.Box
	engine *harness.Docker
)

const image = "debian:test"

// These tell the tests inside the box where the Go module and toolchain lie that were found outside.
const (
	envModule    = "AGENTSAFE_TEST_MODULE"
	envToolchain = "AGENTSAFE_TEST_TOOLCHAIN"
)

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(ctx context.Context) error {
			_, err := harness.Debian(ctx)
			return errors.Join(err, fetchModule(ctx), findToolchain(ctx))
		},
		Setup: func(b *harness.Box) (func() error, error) {
			debian, err := harness.Debian(context.Background())
			if err != nil {
				return nil, err
			}
			if engine, err = b.StartDocker(); err != nil {
				return nil, err
			}
			box = b
			return engine.Stop, engine.Import(debian.Tar, image)
		},
	})
}

// fetchModule makes sure that a module whose tests need nothing but itself is in the module cache.
func fetchModule(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", "github.com/google/go-cmp@v0.7.0")
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("download module: %w: %s", err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return err
	}
	return os.Setenv(envModule, module.Dir)
}

func findToolchain(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("find the Go toolchain: %w", err)
	}
	return os.Setenv(envToolchain, strings.TrimSpace(string(out)))
}
