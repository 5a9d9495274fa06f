package conformance

import (
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var box *harness.Box

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(context.Context) error {
			_, err := toolsDir()
			return err
		},
		Setup: func(b *harness.Box) (func() error, error) {
			box = b
			// Containers with a user namespace look for their root file system below it.
			if err := os.Chmod(b.Dir, 0o755); err != nil {
				return nil, err
			}
			// One of the programs mounts /etc, and wants to find it as it was.
			return nil, unix.Unmount("/etc", unix.MNT_DETACH)
		},
	})
}
