package options

import (
	"context"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var (
	box    *harness.Box
	engine *harness.Docker
	podman *harness.Podman
)

const image = "busybox:test"

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(context.Context) error {
			_, err := harness.Busybox()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			busybox, err := harness.Busybox()
			if err != nil {
				return nil, err
			}
			if err := installGPUHook(b); err != nil {
				return nil, err
			}
			if err := installCDI(); err != nil {
				return nil, err
			}
			if engine, err = b.StartDocker(); err != nil {
				return nil, err
			}
			box, podman = b, &harness.Podman{Box: b}
			if err := engine.Import(busybox.Tar, image); err != nil {
				return engine.Stop, err
			}
			return engine.Stop, podman.Load(busybox.Archive)
		},
	})
}
