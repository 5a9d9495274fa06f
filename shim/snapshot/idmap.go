package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/thread"
)

// NewUserNamespace makes a user namespace with these mappings. The caller closes it.
type NewUserNamespace func(uid, gid []syscall.SysProcIDMap) (*os.File, error)

// parseIDMap reads "container:host:size", several of which are separated by commas.
// Source: containerd, core/mount, options uidmap and gidmap of a snapshot whose owners are a user namespace's.
func parseIDMap(text string) ([]syscall.SysProcIDMap, error) {
	var out []syscall.SysProcIDMap
	for part := range strings.SplitSeq(text, ",") {
		f := strings.Split(part, ":")
		var n [3]int
		if len(f) != len(n) {
			return nil, fmt.Errorf("id mapping %q is not CONTAINER:HOST:SIZE: %w", part, unix.EINVAL)
		}
		for i := range f {
			v, err := strconv.ParseUint(f[i], 10, 32)
			if err != nil {
				return nil, fmt.Errorf("id mapping %q is not CONTAINER:HOST:SIZE: %w", part, unix.EINVAL)
			}
			n[i] = int(v) //nolint:gosec // 32 bits
		}
		out = append(out, syscall.SysProcIDMap{ContainerID: n[0], HostID: n[1], Size: n[2]})
	}
	return out, nil
}

// mapped mounts p with the owners that a user namespace sees. An overlay's lower directories are mapped one by one, its
// upper one holds the host's ids; of anything else the mount itself is mapped. All of it happens in a mount namespace of
// a thread that ends here: what a crash leaves is nothing, and no other program sees the pieces. Overlays of mapped
// directories need Linux 5.19.
func (p *Plan) mapped(newNS NewUserNamespace) error {
	uid, err := parseIDMap(p.UIDMap)
	if err != nil {
		return err
	}
	gid, err := parseIDMap(p.GIDMap)
	if err != nil {
		return err
	}
	ns, err := newNS(uid, gid)
	if err != nil {
		return err
	}
	defer ns.Close()
	type result struct {
		tree int
		err  error
	}
	done := make(chan result)
	thread.Go(func() {
		tree, err := p.assemble(int(ns.Fd()))
		done <- result{tree, err}
	})
	r := <-done
	if r.err != nil {
		return r.err
	}
	defer unix.Close(r.tree)
	if err := unix.MoveMount(r.tree, "", unix.AT_FDCWD, p.Target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	if p.Propagation != 0 {
		if err := unix.Mount("", p.Target, "", p.Propagation, ""); err != nil {
			return fmt.Errorf("set propagation: %w", err)
		}
	}
	return nil
}

// assemble returns the mount, detached, as a descriptor of the caller's.
func (p *Plan) assemble(ns int) (int, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return -1, fmt.Errorf("unshare mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return -1, fmt.Errorf("make mounts private: %w", err)
	}
	if p.Type != "overlay" {
		if err := p.mount(); err != nil {
			return -1, err
		}
		return cloneMapped(p.Target, ns, p.Flags&unix.MS_REC)
	}
	// The directories get short names in a file system of ours on the target, which the overlay then covers.
	if err := unix.Mount("tmpfs", p.Target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return -1, fmt.Errorf("make room for lower directories: %w", err)
	}
	if err := unix.Chdir(p.Target); err != nil {
		return -1, fmt.Errorf("enter %s: %w", p.Target, err)
	}
	var names []string
	for i, lower := range strings.Split(p.Lower, ":") {
		name := strconv.Itoa(i)
		if err := lowerAt(filepath.Clean(lower), name, ns); err != nil {
			return -1, fmt.Errorf("map owners of %s: %w", lower, err)
		}
		names = append(names, name)
	}
	data := "lowerdir=" + strings.Join(names, ":")
	if p.Data != "" {
		data = p.Data + "," + data
	}
	if len(data) > maxDataBytes {
		return -1, fmt.Errorf("options of the overlay mount have %d bytes, the kernel takes %d: %w", len(data), maxDataBytes, unix.E2BIG)
	}
	if err := unix.Mkdir("merged", 0o700); err != nil {
		return -1, fmt.Errorf("make target: %w", err)
	}
	if err := unix.Mount(p.Source, "merged", p.Type, p.Flags, data); err != nil {
		return -1, err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, "merged", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("detach: %w", err)
	}
	return tree, nil
}

// lowerAt attaches a mapped copy of a lower directory to the directory name, which it makes.
func lowerAt(lower, name string, ns int) error {
	if err := unix.Mkdir(name, 0o700); err != nil {
		return err
	}
	tree, err := cloneMapped(lower, ns, 0)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return unix.MoveMount(tree, "", unix.AT_FDCWD, name, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// cloneMapped returns a detached copy of what is mounted at path, with the owners of a user namespace.
func cloneMapped(path string, ns int, recursive uintptr) (int, error) {
	flags, at := uint(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC), uint(unix.AT_EMPTY_PATH)
	if recursive != 0 {
		flags, at = flags|unix.AT_RECURSIVE, at|unix.AT_RECURSIVE
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, flags)
	if err != nil {
		return -1, fmt.Errorf("copy mount: %w", err)
	}
	err = unix.MountSetattr(tree, "", at, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)}) //nolint:gosec // a descriptor
	if err != nil {
		unix.Close(tree)
		if errors.Is(err, unix.EINVAL) {
			return -1, fmt.Errorf("the file system can't map owners: %w", err)
		}
		return -1, err
	}
	return tree, nil
}
