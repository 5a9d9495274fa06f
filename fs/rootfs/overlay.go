package rootfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlay describes an overlay of lower trees and, unless it is only read, a writable upper directory.
type Overlay struct {
	// Lower are the trees below, topmost first. They are directories of the caller's mount namespace or, from Linux 6.15
	// on, the roots of detached mounts.
	Lower []*os.File
	// Upper and Work are directories of one file system, in the caller's mount namespace; nil for a read-only overlay.
	Upper, Work *os.File
	// Volatile leaves out the flush to disk at fsync(2) and at the end; the upper can be mounted once only.
	Volatile bool
	// Numbers gives the files numbers in which their file system is, so that all have the device of the overlay though
	// upper and lower are of different file systems. Source: overlayfs.rst, "Inode properties".
	Numbers bool
	// Attr are MOUNT_ATTR_* bits of the mount.
	Attr int
}

// Open makes the overlay as a detached mount, which the caller owns. No attribute of a file stands for another file:
// redirect_dir=off, metacopy=off (overlayfs.rst, "Redirects" and "Metadata only copy up"), so that an upper directory
// says by itself what was changed. The layers are named by descriptor: no path of them is resolved again.
func (o *Overlay) Open() (*os.File, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open overlay: %w", err)
	}
	defer unix.Close(fs)
	redirect := "off"
	if InUserNamespace() {
		redirect = "nofollow" // the same and stricter: off follows where the module's parameter says so, which userxattr refuses
	}
	xino := "off"
	if o.Numbers {
		xino = "on"
	}
	options := append(o.lower(), [][2]string{{"redirect_dir", redirect}, {"metacopy", "off"}, {"index", "off"}, {"xino", xino}}...)
	if InUserNamespace() {
		// trusted.* attributes are not for this root: the overlay keeps its own as user.overlay.* (Linux 5.11,
		// 2d2f2d7322ff "ovl: user xattr").
		if err := unix.FsconfigSetFlag(fs, "userxattr"); err != nil {
			return nil, fmt.Errorf("set userxattr of overlay: %w", explainOverlay(fs, err))
		}
	}
	if o.Upper != nil {
		options = append(options, [2]string{"upperdir", fdPath(o.Upper)}, [2]string{"workdir", fdPath(o.Work)})
	}
	for _, kv := range options {
		if err := unix.FsconfigSetString(fs, kv[0], kv[1]); err != nil {
			return nil, fmt.Errorf("set %s of overlay: %w", kv[0], explainOverlay(fs, err))
		}
	}
	if o.Volatile && o.Upper != nil {
		if err := unix.FsconfigSetFlag(fs, "volatile"); err != nil {
			return nil, fmt.Errorf("set volatile of overlay: %w", explainOverlay(fs, err))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("create overlay: %w", explainOverlay(fs, err))
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, o.Attr)
	if err != nil {
		return nil, fmt.Errorf("mount overlay: %w", err)
	}
	return os.NewFile(uintptr(fd), "overlay"), nil
}

// lower returns the options that name the trees below. A value of fsconfig(2) has 255 bytes; from 24e16e385f22 ("ovl: add
// support for appending lowerdirs one by one", 6.7) on each has a value of its own, and without it many are refused.
func (o *Overlay) lower() [][2]string {
	const short = 8
	if len(o.Lower) > short {
		var out [][2]string
		for _, l := range o.Lower {
			out = append(out, [2]string{"lowerdir+", fdPath(l)})
		}
		return out
	}
	var lower strings.Builder
	for i, l := range o.Lower {
		if i > 0 {
			lower.WriteString(":")
		}
		lower.WriteString(fdPath(l))
	}
	return [][2]string{{"lowerdir", lower.String()}}
}

func fdPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// explainOverlay adds what the kernel has to say, which stands in the file system context.
func explainOverlay(fs int, err error) error {
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("the kernel has no overlayfs: %w", err)
	}
	buf := make([]byte, 512)
	if n, rerr := unix.Read(fs, buf); rerr == nil && n > 2 {
		return fmt.Errorf("%s: %w", bytes.TrimSpace(buf[2:n]), err)
	}
	return err
}
