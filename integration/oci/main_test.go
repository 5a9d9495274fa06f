package oci

import (
	"context"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// box is where all tests of this package run.
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
