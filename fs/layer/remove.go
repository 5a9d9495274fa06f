package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// removedPrefix begins the name of layers that are being removed. No container has it in its name.
const removedPrefix = "@removed-"

// Remove removes the layers of a container that does not run. They are out of sight at once, however long it takes to remove
// what is in them; what a crash leaves of that, Expire removes. told, if it is not nil, is called now and then with the
// number of files that have been removed.
func Remove(store, id string, told func(files int)) error {
	if err := checkID(id); err != nil {
		return err
	}
	path := filepath.Join(store, id)
	l, err := openDir(path)
	if err != nil {
		return err
	}
	defer l.Close()
	if l.State, err = readState(l.dir); err == nil && l.alive() {
		return fmt.Errorf("container %q uses its layers: %w", id, unix.EBUSY)
	}
	if err == nil && l.Folder != nil && len(l.Promoted) == 0 { // what was promoted to stays
		if err := l.Folder.Remove(); err != nil {
			return err
		}
	}
	// The state goes first: a removal that is interrupted leaves nothing that looks complete.
	unix.Unlinkat(int(l.dir.Fd()), stateFile, 0) //nolint:errcheck // whatever is left goes with the rest
	if err := releaseMemory(l.dir); err != nil {
		return fmt.Errorf("remove layers of container %q: %w", id, err)
	}
	aside := filepath.Join(store, removedPrefix+strconv.FormatInt(time.Now().UnixNano(), 36))
	if err := unix.Rename(path, aside); err != nil {
		return fmt.Errorf("remove layers of container %q: %w", id, err)
	}
	if err := removeAside(l.dir, aside, told); err != nil {
		return fmt.Errorf("remove layers of container %q: %w", id, err)
	}
	return nil
}

func removeAside(dir *os.File, path string, told func(files int)) error {
	if err := tree.RemoveAll(tree.NewRoot(dir), told); err != nil {
		return err
	}
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// removeLeft removes what an interrupted removal has left. One that goes on holds the lock.
func removeLeft(store string, told func(files int)) error {
	entries, err := os.ReadDir(store)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), removedPrefix) {
			continue
		}
		path := filepath.Join(store, e.Name())
		dir, oerr := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if oerr != nil {
			continue // gone meanwhile
		}
		if unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = errors.Join(err, releaseMemory(dir), removeAside(dir, path, told))
		}
		dir.Close()
	}
	if err != nil {
		return fmt.Errorf("remove what is left of removed layers: %w", err)
	}
	return nil
}

// discard removes a directory that is no layers of anybody.
func discard(path string) error {
	dir, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		err = releaseMemory(dir)
		dir.Close()
	}
	if err != nil {
		return fmt.Errorf("remove what is left of layers: %w", err)
	}
	return os.RemoveAll(path)
}
