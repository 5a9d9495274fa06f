package safepath

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenInRoot opens unsafePath as if root were "/". Symlinks are followed inside; magic links of proc are refused
// (ELOOP). O_CLOEXEC is added to flags. The caller owns the file.
func OpenInRoot(root *os.File, unsafePath string, flags int) (*os.File, error) {
	return openat2(root, unsafePath, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
}

func openat2(root *os.File, unsafePath string, flags int, resolve uint64) (*os.File, error) {
	relative := strings.TrimLeft(unsafePath, "/")
	if relative == "" {
		relative = "."
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve} //nolint:gosec // flags are bits
	for again := 0; ; {
		fd, err := unix.Openat2(int(root.Fd()), relative, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), unsafePath), nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && again < maxAgain:
			// Something on the host was renamed or mounted, and the kernel could not tell whether we left the root.
			again++
			continue
		default:
			return nil, &os.PathError{Op: "open beneath root", Path: unsafePath, Err: err}
		}
	}
}

// maxAgain bounds how often an attacker who renames without pause, or who holds a lease on the file (EAGAIN as well),
// makes us try.
const maxAgain = 256

// maxLinks is the kernel's own limit of symlinks in one look-up.
const maxLinks = 40

// Resolve returns where unsafePath leads when root is "/", with every symlink replaced, also where the last components
// do not exist. The answer holds for the moment only: open it with OpenInRoot.
func Resolve(root *os.File, unsafePath string) (string, error) {
	// Not cleaned: "link/.." is the parent of what link leads to.
	done, todo := "/", unsafePath
	links := 0
	for todo != "" {
		name, rest, _ := strings.Cut(todo, "/")
		todo = rest
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, name)
		link, err := readlink(root, done, name)
		switch {
		case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
			done = next // not a symlink, or nothing at all
			continue
		case err != nil:
			return "", err
		}
		if links++; links > maxLinks {
			return "", &os.PathError{Op: "resolve beneath root", Path: unsafePath, Err: unix.ELOOP}
		}
		if path.IsAbs(link) {
			done = "/"
		}
		todo = link + "/" + todo
	}
	return done, nil
}

func readlink(root *os.File, dir, name string) (string, error) {
	parent, err := OpenInRoot(root, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return "", errors.Unwrap(err)
	}
	defer parent.Close()
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(parent.Fd()), name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}
