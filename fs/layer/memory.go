package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The layers of a workspace can lie in memory, in a tmpfs of the size of their quota. It is attached in the workspace's
// directory, so that it outlives who made it, and whoever works on the layers finds it there; it goes with them, or with
// the machine.

// ErrMemoryGone says that layers lay in memory and are not there any more.
var ErrMemoryGone = errors.New("the layers lay in memory and are gone: the machine was started anew, or they were made in another mount namespace")

const memoryName = "memory" // the mount point, in the workspace's directory

func memoryDir(w *Workspace) string { return w.Name + "/" + memoryName }

// makeMemory mounts the file system of a workspace whose layers lie in memory.
func (l *Layers) makeMemory(w *Workspace) error {
	q := w.Quota
	if q.Bytes < minQuota || q.Inodes < 0 || q.Inodes > 0 && q.Inodes < minInodes {
		return fmt.Errorf("layers in memory: %d bytes and %d files: at least %d and %d: %w", q.Bytes, q.Inodes, minQuota, minInodes, unix.EINVAL)
	}
	if err := l.makeDir(nil, memoryDir(w)); err != nil {
		return err
	}
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open tmpfs: %w", err)
	}
	defer unix.Close(fs)
	options := [][2]string{{"source", "agentsafe"}, {"mode", "0700"}, {"size", strconv.FormatInt(q.Bytes, 10)}}
	if q.Inodes > 0 {
		options = append(options, [2]string{"nr_inodes", strconv.FormatInt(q.Inodes+ownInodes, 10)})
	}
	for _, kv := range options {
		if err := unix.FsconfigSetString(fs, kv[0], kv[1]); err != nil {
			return fmt.Errorf("set %s of tmpfs: %w", kv[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("create tmpfs: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOATIME)
	if err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat tmpfs: %w", err)
	}
	w.MemoryDev = st.Dev
	if err := unix.MoveMount(fd, "", int(l.dir.Fd()), memoryDir(w), unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach tmpfs: %w", err)
	}
	return nil
}

// openMemory opens the root of that file system.
func (l *Layers) openMemory(w *Workspace) (*os.File, error) {
	fd, err := unix.Openat(int(l.dir.Fd()), memoryDir(w), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open layers in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), memoryName)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != w.MemoryDev || l.Boot != bootID() {
		f.Close()
		return nil, errors.Join(ErrMemoryGone, err)
	}
	return f, nil
}

// releaseMemory lets go of what lies in memory in a directory of layers, whatever its state says: a crash may have come
// before that was written. What is still in use, an overlay or a file, keeps it.
func releaseMemory(dir *os.File) error {
	names, err := readNames(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "w") {
			continue
		}
		// By handle: the directory may be renamed meanwhile.
		at := filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), name, memoryName)
		err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("unmount layers in memory: %w", err)
		}
	}
	return nil
}

// readNames lists a directory, through a description of its own: the position of a shared one is somebody else's.
func readNames(dir *os.File) ([]string, error) {
	f, err := reopen(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
