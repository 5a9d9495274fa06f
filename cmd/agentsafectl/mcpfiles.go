package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
)

// maxFileBytes bounds what read_file and write_file move.
const maxFileBytes = 1 << 20

// workspaceDir opens the workspace as the container sees it.
func (w *warm) workspaceDir() (*os.File, error) {
	root, err := os.OpenFile("/proc/"+strconv.Itoa(w.c.State().InitPID)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the container's root: %w", err)
	}
	defer root.Close()
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(int(root.Fd()), strings.TrimPrefix(w.workspace, "/"), &how)
	if err != nil {
		return nil, fmt.Errorf("open the workspace: %w", err)
	}
	return os.NewFile(uintptr(fd), w.workspace), nil
}

// errOutside says that a path is not in the workspace.
var errOutside = errors.New("outside of the workspace")

// relative returns a path below the workspace. It compares whole names: /work-evil is not in /work.
func (w *warm) relative(unsafePath string) (string, error) {
	if strings.ContainsRune(unsafePath, 0) || unsafePath == "" {
		return "", fmt.Errorf("path %q: %w", unsafePath, unix.EINVAL)
	}
	if !path.IsAbs(unsafePath) {
		return unsafePath, nil
	}
	clean := path.Clean(unsafePath)
	if rest, ok := strings.CutPrefix(clean, strings.TrimSuffix(w.workspace, "/")+"/"); ok {
		return rest, nil
	}
	if clean == path.Clean(w.workspace) {
		return ".", nil
	}
	return "", fmt.Errorf("path %q: %w %s", unsafePath, errOutside, w.workspace)
}

// open opens a file beneath the workspace, with the rights of the task's user. Symlinks that lead out, and "..", fail.
func (w *warm) open(unsafePath string, flags uint64) (f *os.File, err error) {
	name, err := w.relative(unsafePath)
	if err != nil {
		return nil, err
	}
	dir, err := w.workspaceDir()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	how := unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o644
	}
	var fd int
	w.asUser(func() { fd, err = unix.Openat2(int(dir.Fd()), name, &how) })
	if errors.Is(err, unix.EXDEV) {
		err = errOutside
	}
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", unsafePath, err)
	}
	f = os.NewFile(uintptr(fd), unsafePath)
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("path %q: %w", unsafePath, err)
	}
	return f, nil
}

// asUser calls f on a thread with the file system ids of the task's user. Leaving uid 0 behind also takes the
// capabilities that pass by permissions away (capabilities(7), effect of user ID changes).
func (w *warm) asUser(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	gid, _ := unix.SetfsgidRetGid(int(w.o.user.GID))
	uid, _ := unix.SetfsuidRetUid(int(w.o.user.UID))
	defer unix.Setfsgid(gid) //nolint:errcheck // likewise
	defer unix.Setfsuid(uid) //nolint:errcheck // likewise
	f()
}

// readFile returns at most limit bytes from offset, and the file's size.
func (w *warm) readFile(unsafePath string, offset int64, limit int) (data []byte, size int64, err error) {
	f, err := w.open(unsafePath, unix.O_RDONLY)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	data, err = io.ReadAll(io.NewSectionReader(f, offset, int64(limit)))
	return data, st.Size(), err
}

// writeByExec replaces a file's content by a command in the container, so that the write is a transaction that can be
// taken back. The path is judged first by the same rules as that of an opened file; a task that changes it meanwhile
// makes the command write to what the task itself may write to.
func (w *warm) writeByExec(ctx context.Context, unsafePath, text string) (*call.Result, error) {
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("path %q: %d bytes, at most %d", unsafePath, len(text), maxFileBytes)
	}
	name, err := w.relative(unsafePath)
	if err != nil {
		return nil, err
	}
	f, err := w.open(unsafePath, unix.O_WRONLY)
	switch {
	case err == nil:
		f.Close()
	case errors.Is(err, unix.ENOENT):
		if err := w.checkNew(name); err != nil {
			return nil, fmt.Errorf("path %q: %w", unsafePath, err)
		}
	default:
		return nil, err
	}
	out, err := w.exec(ctx, execRequest{
		Args:  []string{"/bin/sh", "-c", `exec cat >"$1"`, "write_file", path.Join(w.workspace, name)},
		Stdin: text, Timeout: defaultCallTimeout, MaxOutput: defaultOutput,
	})
	if err == nil && (out.ExitCode != 0 || out.TimedOut) {
		err = fmt.Errorf("path %q: %s", unsafePath, strings.TrimSpace(out.Stderr))
	}
	return out, err
}

// checkNew checks the directory of a file that does not exist yet. A symlink that leads nowhere is refused.
func (w *warm) checkNew(name string) error {
	dir, err := w.workspaceDir()
	if err != nil {
		return err
	}
	defer dir.Close()
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	parent, base := path.Split(strings.TrimSuffix(name, "/"))
	if base == "" || base == "." || base == ".." {
		return unix.EISDIR
	}
	var fd int
	w.asUser(func() { fd, err = unix.Openat2(int(dir.Fd()), "./"+parent, &how) })
	if errors.Is(err, unix.EXDEV) {
		return errOutside
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		return errors.New("a symlink that leads nowhere")
	} else if !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// writeFile replaces a file's content.
func (w *warm) writeFile(unsafePath, text string) error {
	if len(text) > maxFileBytes {
		return fmt.Errorf("path %q: %d bytes, at most %d", unsafePath, len(text), maxFileBytes)
	}
	f, err := w.open(unsafePath, unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return err
	}
	defer f.Close()
	// Not by O_TRUNC: a file that turns out to be none of ours must keep its content.
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("path %q: %w", unsafePath, err)
	}
	if _, err := io.WriteString(f, text); err != nil {
		return fmt.Errorf("path %q: %w", unsafePath, err)
	}
	return nil
}
