package podman

import (
	"context"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var (
	box    *harness.Box
	engine *harness.Podman
)

const image = "busybox:test"

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(context.Context) error {
			_, err := harness.Busybox()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box, engine = b, &harness.Podman{Box: b}
			busybox, err := harness.Busybox()
			if err != nil {
				return nil, err
			}
			return nil, engine.Load(busybox.Archive)
		},
	})
}
