package races

import (
	"context"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var box *harness.Box

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(context.Context) error {
			_, err := harness.Busybox()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box = b
			return nil, nil
		},
	})
}
