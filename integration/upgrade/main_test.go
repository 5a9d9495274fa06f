package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var box *harness.Box

// envOlder tells the tests inside the box where the older programs are, empty if there is no history; envProbe says why.
const (
	envOlder = "AGENTSAFE_TEST_OLDER"
	envProbe = "AGENTSAFE_TEST_HISTORY"
)

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(ctx context.Context) error {
			_, err := harness.Busybox()
			dir, berr := harness.Previous(ctx)
			if errors.Is(berr, harness.ErrNoHistory) {
				return errors.Join(err, os.Setenv(envProbe, berr.Error()))
			}
			return errors.Join(err, berr, os.Setenv(envOlder, dir))
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box = b
			// Layers need a file system that can hold an overlay's upper directory, and the box's /var/lib is an overlay.
			backing, store := filepath.Join(b.Dir, "store"), "/var/lib/agentsafe"
			if err := errors.Join(os.MkdirAll(backing, 0o700), os.MkdirAll(store, 0o700)); err != nil {
				return nil, err
			}
			if err := unix.Mount(backing, store, "", unix.MS_BIND, ""); err != nil {
				return nil, fmt.Errorf("bind %s: %w", store, err)
			}
			return func() error { return unix.Unmount(store, 0) }, nil
		},
	})
}
