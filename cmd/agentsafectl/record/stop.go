package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stop is a task that waits before a system call.
type stop struct {
	pid  int
	args [6]uint64
}

// word reads eight bytes of the task's memory, 0 if it can't.
func (t *stop) word(at uint64) uint64 {
	var b [8]byte
	if !t.read(at, b[:]) {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}

func (t *stop) read(at uint64, into []byte) bool {
	n, err := unix.ProcessVMReadv(t.pid, []unix.Iovec{iovec(into)}, []unix.RemoteIovec{{Base: uintptr(at), Len: len(into)}}, 0)
	return err == nil && n == len(into)
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}

// text reads a string; "" if there is none.
func (t *stop) text(at uint64) string {
	const page, longest = 4096, 4096
	var out []byte
	for at != 0 && len(out) < longest {
		chunk := make([]byte, min(page-at%page, 256))
		if !t.read(at, chunk) {
			return ""
		}
		if before, _, ok := bytes.Cut(chunk, []byte{0}); ok {
			return string(append(out, before...))
		}
		out = append(out, chunk...)
		at += uint64(len(chunk))
	}
	return ""
}

// path reads the path argument, as an absolute one beneath the task's root; dirArg is [none] for the working directory.
// "" is none. An empty argument is the descriptor itself (AT_EMPTY_PATH).
func (t *stop) path(dirArg, pathArg int) string {
	p := t.text(t.args[pathArg])
	if filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	link := "cwd"
	if dirArg != none {
		if fd := int32(t.args[dirArg]); fd != unix.AT_FDCWD { //nolint:gosec // the kernel takes 32 bits
			link = "fd/" + strconv.Itoa(int(fd))
		}
	}
	if p == "" && link == "cwd" {
		return ""
	}
	dir, err := os.Readlink("/proc/" + strconv.Itoa(t.pid) + "/" + link)
	if err != nil || !filepath.IsAbs(dir) {
		return ""
	}
	return filepath.Join(t.inside(dir), p)
}

// inside turns a path as this process sees it into one beneath the task's root, which differ after chroot(2) alone: the
// kernel names files of another mount namespace from that one's root.
func (t *stop) inside(p string) string {
	root, err := os.Readlink("/proc/" + strconv.Itoa(t.pid) + "/root")
	if err != nil || root == "/" {
		return p
	}
	if rest, ok := strings.CutPrefix(p, root+"/"); ok {
		return "/" + rest
	}
	if p == root {
		return "/"
	}
	return p
}

// open opens a file of the task's by its path: symlinks and .. lead nowhere out of the task's root, and /proc's magic
// links nowhere at all. The caller closes it.
func (t *stop) open(p string, flags uint64) (*os.File, error) {
	root, err := unix.Open("/proc/"+strconv.Itoa(t.pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open root for", Path: p, Err: err}
	}
	defer unix.Close(root)
	for {
		fd, err := unix.Openat2(root, p, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
		if err == nil {
			return os.NewFile(uintptr(fd), p), nil
		}
		// EAGAIN: something was renamed meanwhile, so that the kernel can't tell whether .. leads out.
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return nil, &os.PathError{Op: "open", Path: p, Err: err}
		}
	}
}

// real returns the path without symlinks of a file that exists, beneath the task's root.
func (t *stop) real(p string) (string, error) {
	f, err := t.open(p, unix.O_PATH)
	if err != nil {
		return "", err
	}
	defer f.Close()
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return "", err
	}
	return t.inside(name), nil
}
