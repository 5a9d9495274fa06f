package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/fs/thread"
)

// stack says what an overlay of a workspace consists of.
type stack struct {
	w *Workspace
	// host is the folder of the host, of the caller's mount namespace; or view is a detached mount of the container's view.
	host, view  *os.File
	upper, work string
	// scratch is a directory of the container in which mounts can be attached for a moment.
	scratch string
}

// overlay mounts a stack. It is volatile: fsync(2) in a layer reaches no disk, and the end of a container does not wait
// for one. The host's folder is not concerned.
//
// Before Linux 6.15 overlayfs takes no detached mount as a layer (clone_private_mount wants one of the caller's mount
// namespace), so a view, or an image, is attached in a namespace made for that.
func (l *Layers) overlay(s *stack) (*os.File, error) {
	f, err := l.overlayHere(s)
	if errors.Is(err, unix.EINVAL) && (s.view != nil || s.w.Quota != (Quota{})) {
		f, err = l.overlayAttached(s)
	}
	return f, err
}

func (l *Layers) overlayHere(s *stack) (*os.File, error) {
	u, err := l.open(s.w, s.upper)
	if err != nil {
		return nil, err
	}
	defer u.Close()
	w, err := l.open(s.w, s.work)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	lower := s.view
	if lower == nil {
		lower = s.host
	}
	o := rootfs.Overlay{Lower: []*os.File{lower}, Upper: u, Work: w, Volatile: true, Numbers: s.numbers()}
	return o.Open()
}

// numbers reports whether the overlay has to number its files itself: upper and lower are of two file systems, and files
// below would have another device than the directories that they are in. Not above a view that does so already.
func (s *stack) numbers() bool { return s.view == nil && s.w.InMemory() }

// overlayAttached does it on a thread with a mount namespace of its own, which ends with the thread; the overlay holds
// what it needs.
func (l *Layers) overlayAttached(s *stack) (f *os.File, err error) {
	if s.scratch == "" {
		s.scratch = s.w.Name
	}
	for _, name := range []string{"", "/base", "/image"} {
		if err := l.makeDir(nil, s.scratch+name); err != nil {
			return nil, err
		}
	}
	thread.Run(func() { f, err = l.overlayInside(s) })
	return f, err
}

func (l *Layers) overlayInside(s *stack) (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, fmt.Errorf("create mount namespace: %w", err)
	}
	// Nothing that is attached here may appear on the host.
	attr := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &attr); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	scratch := filepath.Join(l.path, s.scratch)
	// By path, once more: a descriptor from before is of a mount of the other namespace.
	lower, data := s.w.Source, l.path
	if s.w.Copied {
		lower = filepath.Join(l.path, copyDir(s.w))
	}
	if s.view != nil {
		lower = filepath.Join(scratch, "base")
		if err := attach(s.view, lower); err != nil {
			return nil, fmt.Errorf("attach the base of a transaction: %w", err)
		}
	}
	switch {
	case s.w.InMemory():
		data = filepath.Join(l.path, memoryDir(s.w))
	case s.w.Quota != (Quota{}):
		image, err := l.mountDisk(s.w)
		if err != nil {
			return nil, err
		}
		defer image.Close()
		data = filepath.Join(scratch, "image")
		if err := attach(image, data); err != nil {
			return nil, fmt.Errorf("attach the image of a layer: %w", err)
		}
	}
	var opened []*os.File
	defer func() {
		for _, f := range opened {
			f.Close()
		}
	}()
	for _, p := range []string{lower, filepath.Join(data, s.upper), filepath.Join(data, s.work)} {
		f, err := os.OpenFile(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open layer: %w", err)
		}
		opened = append(opened, f)
	}
	if s.view == nil && !s.w.Copied {
		if err := s.w.isSource(opened[0]); err != nil {
			return nil, err
		}
	}
	o := rootfs.Overlay{Lower: opened[:1], Upper: opened[1], Work: opened[2], Volatile: true, Numbers: s.numbers()}
	return o.Open()
}

func attach(mount *os.File, path string) error {
	return unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// Mount returns a transaction's view of one workspace as a detached mount, which the caller owns. dir is where its layer
// lies, view a detached mount of the container's view.
func (l *Layers) Mount(dir string, w *Workspace, view *os.File) (*os.File, error) {
	f, err := l.overlay(&stack{w: w, view: view, upper: upperIn(dir, w), work: workIn(dir, w), scratch: dir + "/" + w.Name})
	if err != nil {
		if host, herr := l.lower(w); herr == nil {
			if on, oerr := OnOverlay(host); oerr == nil && on {
				err = explainLower(err, host)
			}
			host.Close()
		}
		return nil, fmt.Errorf("transaction on workspace %q: %w", w.Destination, err)
	}
	return f, nil
}
