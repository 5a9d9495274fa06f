package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

// Mount returns a transaction's view of one workspace as a detached mount, which the caller owns. base is a detached
// mount of the container's view.
//
// Before Linux 6.15 overlayfs takes no detached mount as a layer (clone_private_mount wants one of the caller's mount
// namespace), so base is attached in a namespace made for that.
func (l *Layers) Mount(tx *Transaction, w *Workspace, base *os.File) (*os.File, error) {
	f, err := l.overlay([]*os.File{base}, txUpper(tx.N, w), txWork(tx.N, w))
	if errors.Is(err, unix.EINVAL) {
		f, err = l.mountAttached(tx, w, base)
	}
	if err != nil {
		return nil, fmt.Errorf("transaction on workspace %q: %w", w.Destination, err)
	}
	return f, nil
}

// mountAttached does it on a thread with a mount namespace of its own, which ends with the thread; the overlay holds
// what it needs.
func (l *Layers) mountAttached(tx *Transaction, w *Workspace, base *os.File) (f *os.File, err error) {
	scratch := txDir(tx.N) + "/" + w.Name + "/base"
	if err := l.makeDir(scratch); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread is in another mount namespace than the rest
		f, err = l.mountInside(filepath.Join(l.path, scratch), tx, w, base)
	}()
	<-done
	return f, err
}

func (l *Layers) mountInside(scratch string, tx *Transaction, w *Workspace, base *os.File) (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, fmt.Errorf("create mount namespace: %w", err)
	}
	// Nothing that is attached here may appear on the host.
	attr := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &attr); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.MoveMount(int(base.Fd()), "", unix.AT_FDCWD, scratch, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, fmt.Errorf("attach the base of a transaction: %w", err)
	}
	// By path, once more: a descriptor from before is of a mount of the other namespace.
	var opened []*os.File
	defer func() {
		for _, f := range opened {
			f.Close()
		}
	}()
	for _, p := range []string{scratch, filepath.Join(l.path, txUpper(tx.N, w)), filepath.Join(l.path, txWork(tx.N, w))} {
		f, err := os.OpenFile(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open layer: %w", err)
		}
		opened = append(opened, f)
	}
	o := rootfs.Overlay{Lower: opened[:1], Upper: opened[1], Work: opened[2], Volatile: true}
	return o.Open()
}
