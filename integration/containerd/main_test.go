package containerd

import (
	"context"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var (
	box    *harness.Box
	engine *harness.Containerd
)

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
			box = b
			if engine, err = b.StartContainerd(); err != nil {
				return nil, err
			}
			return engine.Stop, engine.Import(busybox.Archive)
		},
	})
}
