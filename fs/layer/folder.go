package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// Folder is a folder of the host that was made for one container and goes with its layers: a worktree.
type Folder struct {
	Path string `json:"path"`
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
}

// OpenFolder identifies a folder.
func OpenFolder(path string) (*Folder, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, fmt.Errorf("folder %q: %w", path, errors.Join(err, unix.ENOTDIR))
	}
	return &Folder{path, st.Dev, st.Ino}, nil
}

// Remove removes the folder with all that is in it, if it is still the one that was made; then the one above, if it is
// empty.
func (f *Folder) Remove() error {
	dir, err := os.OpenFile(f.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove folder: %w", err)
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil || st.Dev != f.Dev || st.Ino != f.Ino {
		return nil
	}
	if err := tree.RemoveAll(tree.NewRoot(dir), nil); err != nil {
		return fmt.Errorf("remove folder %q: %w", f.Path, err)
	}
	if err := unix.Rmdir(f.Path); err != nil {
		return fmt.Errorf("remove folder: %w", err)
	}
	unix.Rmdir(filepath.Dir(f.Path)) //nolint:errcheck // others' are in it
	return nil
}
