package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/shim/bundle"
	"github.com/agentsafe/agentsafe/shim/snapshot"
	"github.com/agentsafe/agentsafe/shim/socket"
)

// delete prints how the container ended, if its shim has removed it, as is the rule. It returns false, and has printed
// nothing, if there is more to do: then the shim's program does all of it.
func (c *command) delete(out io.Writer) (clean bool, err error) {
	dir := c.Bundle
	if dir == "" {
		dir = "."
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return false, fmt.Errorf("find bundle: %w", err)
	}
	var settings bundle.Settings
	exit, err := bundle.LoadExit(dir)
	if err != nil || exit == nil || bundle.Load(dir, bundle.OptionsFile, &settings) != nil {
		return false, nil //nolint:nilerr // a full disk may have cut it off, or the shim was killed: not the rule
	}
	if _, err := os.Lstat(settings.StateDir(c.Namespace, c.ID)); !errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	err = errors.Join(
		snapshot.Deactivate(filepath.Join(dir, "rootfs")),
		snapshot.Deactivate(bundle.PodShm(dir)),
		socket.RemoveDead(dir),
	)
	if err != nil {
		return false, err
	}
	_, err = out.Write(encodeExit(exit))
	return true, err
}
