package replace

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File replaces the file of that name in the directory, which stays the caller's. mode is as for open(2), less the
// process's umask. On error the old content is in place and no draft is left.
func File(dir *os.File, name string, data []byte, mode uint32) error {
	draft, at := "."+name+".tmp", int(dir.Fd())
	fd, err := unix.Openat(at, draft, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	for errors.Is(err, unix.EEXIST) {
		// Left by a crash; whoever wrote it held the same lock.
		if err := unix.Unlinkat(at, draft, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove stale %s: %w", draft, err)
		}
		fd, err = unix.Openat(at, draft, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), draft)
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = unix.Renameat(at, draft, at, name)
	}
	if err != nil {
		unix.Unlinkat(at, draft, 0) //nolint:errcheck // the first error is the one to report
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
