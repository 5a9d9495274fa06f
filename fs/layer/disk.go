package layer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Quota bounds what the layers of a workspace hold: the view, the transactions, and what is kept to take them back. 0 is
// no bound.
type Quota struct {
	Bytes  int64 `json:"bytes,omitempty"`
	Inodes int64 `json:"inodes,omitempty"`
}

const (
	diskName   = "disk" // the image, in the workspace's directory
	blockSize  = 4096
	inodeSize  = 256
	minQuota   = 1 << 20
	minInodes  = 64
	maxImage   = 16 << 40
	perInode   = 8 << 10 // bytes for each inode, where no number is asked for
	groupBytes = 128 << 20
	ownInodes  = 8 // directories that agentsafe makes
)

// planDisk returns the size of an image, in bytes, and its number of inodes, so that a task can write what the quota
// says: the tables of ext4 come on top. free is what the store's file system has left, which bounds an image that is
// limited in inodes alone.
func planDisk(q Quota, free int64) (size, inodes int64, err error) {
	if q.Bytes < 0 || q.Bytes > 0 && q.Bytes < minQuota || q.Inodes < 0 || q.Inodes > 0 && q.Inodes < minInodes {
		return 0, 0, fmt.Errorf("quota of a layer: %d bytes and %d files: at least %d and %d: %w", q.Bytes, q.Inodes, minQuota, minInodes, unix.EINVAL)
	}
	data := q.Bytes
	if data == 0 {
		data = max(free, minQuota)
	}
	const reserved = 10 // inodes that ext4 keeps for itself
	if inodes = q.Inodes + ownInodes; q.Inodes == 0 {
		inodes = max(data/perInode, minInodes)
	}
	inodes += reserved
	size = data + inodes*inodeSize
	size += (size/groupBytes + 2) * 4 * blockSize // bitmaps, copies of the superblock and its descriptors
	// ext4 keeps 2 % back for its own trees, up to 4096 blocks.
	const part, most = 49, 4096 * blockSize
	size += min(size/part, most) + 1<<20
	if size > maxImage {
		return 0, 0, fmt.Errorf("quota of a layer: %d bytes: more than a file system of layers can hold: %w", q.Bytes, unix.EFBIG)
	}
	return size / blockSize * blockSize, inodes, nil
}

// ext4Features are those of the images: no journal, because what a crash of the machine tears is a layer; nothing that
// depends on the version of mke2fs or on the host's mke2fs.conf.
const ext4Features = "none,extents,dir_index,filetype,sparse_super,large_file,huge_file,dir_nlink,extra_isize,ext_attr,uninit_bg,flex_bg"

// makeDisk makes the image of a workspace: a sparse file with an empty ext4.
func (l *Layers) makeDisk(w *Workspace) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(l.dir.Fd()), &fs); err != nil {
		return fmt.Errorf("stat file system of layers: %w", err)
	}
	size, inodes, err := planDisk(w.Quota, int64(fs.Bavail)*fs.Bsize) //nolint:gosec // a number of blocks
	if err != nil {
		return err
	}
	f, err := os.OpenFile(l.diskPath(w), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		return fmt.Errorf("make image of layer: %w", err)
	}
	cmd := exec.Command("mke2fs", "-q", "-F", "-t", "ext4", "-b", strconv.Itoa(blockSize), "-I", strconv.Itoa(inodeSize), //nolint:noctx // half an image is of no use
		"-N", strconv.FormatInt(inodes, 10), "-m", "0", "-O", ext4Features, "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", l.diskPath(w))
	return runTool(cmd)
}

// runTool runs a program of e2fsprogs, in whose directories a service's PATH may be lacking.
func runTool(cmd *exec.Cmd) error {
	name := cmd.Args[0]
	if cmd.Err != nil {
		for _, dir := range []string{"/usr/sbin", "/sbin"} {
			if p := filepath.Join(dir, name); unix.Access(p, unix.X_OK) == nil {
				cmd.Path, cmd.Err = p, nil
				break
			}
		}
	}
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "MKE2FS_CONFIG=/dev/null"}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("a quota of layers needs %s, of the package e2fsprogs: %w", name, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

func (l *Layers) diskPath(w *Workspace) string { return filepath.Join(l.path, w.Name, diskName) }

// base returns the directory beneath which a workspace's data lie: the root of its image, mounted until the layers are
// closed, that of its tmpfs, or the container's directory.
func (l *Layers) base(w *Workspace) (*os.File, error) {
	if w == nil || w.Quota == (Quota{}) {
		return l.dir, nil
	}
	if f := l.disks[w.Name]; f != nil {
		return f, nil
	}
	// The mount's own descriptor: without it the mount is dissolved, and no overlay takes its directories.
	mount := l.mountDisk
	if w.InMemory() {
		mount = l.openMemory
	}
	f, err := mount(w)
	if err != nil {
		return nil, fmt.Errorf("layers of workspace %q: %w", w.Destination, err)
	}
	if l.disks == nil {
		l.disks = map[string]*os.File{}
	}
	l.disks[w.Name] = f
	return f, nil
}

// mountDisk mounts the image of a workspace, detached. A second mount of it is another name of the same file system,
// because the loop device that has the file is found; two devices on one file would destroy it.
func (l *Layers) mountDisk(w *Workspace) (*os.File, error) {
	image, err := os.OpenFile(l.diskPath(w), os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	device, err := findLoop(image)
	if err == nil && device == nil {
		if err := l.checkDisk(w); err != nil {
			return nil, err
		}
		device, err = attachLoop(image)
	}
	if err != nil {
		return nil, err
	}
	// Open until the file system holds the device: it lets go of the file with its last user.
	defer device.Close()
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open ext4: %w", err)
	}
	defer unix.Close(fs)
	for _, kv := range [][2]string{{"source", device.Name()}, {"barrier", "0"}} {
		if err := unix.FsconfigSetString(fs, kv[0], kv[1]); err != nil {
			return nil, fmt.Errorf("set %s of ext4: %w", kv[0], err)
		}
	}
	if err := unix.FsconfigSetFlag(fs, "noinit_itable"); err != nil {
		return nil, fmt.Errorf("set noinit_itable of ext4: %w", err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("mount ext4: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOATIME)
	if err != nil {
		return nil, fmt.Errorf("mount ext4: %w", err)
	}
	return os.NewFile(uintptr(fd), "disk"), nil
}

// checkDisk repairs an image that a crash of the machine may have torn.
func (l *Layers) checkDisk(w *Workspace) error {
	if l.State == nil || l.Boot == bootID() {
		return nil
	}
	err := runTool(exec.Command("e2fsck", "-f", "-p", l.diskPath(w))) //nolint:noctx // a repair is not broken off
	var exit *exec.ExitError
	const repaired = 1 // e2fsck(8): errors were corrected
	if errors.As(err, &exit) && exit.ExitCode() == repaired {
		return nil
	}
	return err
}

// findLoop returns the loop device that has a file, open; nil if none has.
func findLoop(image *os.File) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat image: %w", err)
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, p := range bound {
		name, _, _ := strings.Cut(strings.TrimPrefix(p, "/sys/block/"), "/")
		device, err := os.OpenFile("/dev/"+name, os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && info.Device == st.Dev && info.Inode == st.Ino {
			return device, nil
		}
		device.Close()
	}
	return nil, nil //nolint:nilnil // none is no error
}

// attachLoop gives a file a loop device, which ends with its last user.
func attachLoop(image *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("a quota of layers needs loop devices: %w", err)
	}
	defer control.Close()
	const tries = 64 // others take devices, too
	for range tries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open loop device: %w", err)
		}
		config := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}} //nolint:gosec // a descriptor
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("configure loop device: %w", err)
		}
	}
	return nil, fmt.Errorf("configure loop device: %w", unix.EBUSY)
}
