package docker

import (
	"context"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var (
	box    *harness.Box
	engine *harness.Docker
)

const image = "busybox:test"

func TestMain(m *testing.M) {
	var busybox harness.Image
	harness.Main(m, harness.Options{
		Prepare: func(context.Context) error {
			_, err := harness.Busybox()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			var err error
			if busybox, err = harness.Busybox(); err != nil {
				return nil, err
			}
			if engine, err = b.StartDocker(); err != nil {
				return nil, err
			}
			box = b
			return engine.Stop, engine.Import(busybox.Tar, image)
		},
	})
}
