package bpf

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUntrusted says that the cache, or a file in it, is not ours alone to write.
var ErrUntrusted = errors.New("is not private to the runtime's user")

// magic begins each file; the sha256 of the rest follows.
const magic = "asbpf\x00\x00\x01"

const headerBytes = len(magic) + sha256.Size

// cache is an opened directory. Files are opened relative to it, so that a check of the directory holds for them.
type cache struct{ dir *os.File }

// openCache opens the directory, and makes it if it is missing.
func openCache(dir string) (*cache, error) {
	f, err := openDir(dir)
	if errors.Is(err, unix.ENOENT) {
		if err := os.MkdirAll(dir, 0o700); err != nil { //nolint:forbidigo // our own directory, not a root file system
			return nil, err
		}
		f, err = openDir(dir)
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("stat: %w", err)
	}
	if !private(&st) {
		f.Close()
		return nil, fmt.Errorf("owner %d, mode %#o: %w", st.Uid, st.Mode&0o7777, ErrUntrusted)
	}
	return &cache{f}, nil
}

func openDir(dir string) (*os.File, error) {
	return os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// private reports whether only our own user, or root, can write a file.
func private(st *unix.Stat_t) bool {
	return (st.Uid == 0 || int(st.Uid) == os.Geteuid()) && st.Mode&0o022 == 0
}

func (c *cache) close() { c.dir.Close() }

// read returns what write stored under a key. Whatever is damaged is an error, as if it were not there.
func (c *cache) read(key string) ([]byte, error) {
	fd, err := unix.Openat(int(c.dir.Fd()), key, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if !private(&st) {
		return nil, fmt.Errorf("file %s: owner %d, mode %#o: %w", key, st.Uid, st.Mode&0o7777, ErrUntrusted)
	}
	const maxBytes = int64(headerBytes + unix.BPF_MAXINSNS*instructionBytes)
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size <= int64(headerBytes) || st.Size > maxBytes {
		return nil, fmt.Errorf("file %s: %w", key, unix.EINVAL)
	}
	data := make([]byte, st.Size)
	if n, err := unix.Pread(fd, data, 0); err != nil || n != len(data) {
		return nil, fmt.Errorf("file %s: %d of %d bytes: %w", key, n, len(data), errors.Join(err, unix.EIO))
	}
	body := data[headerBytes:]
	sum := sha256.Sum256(body)
	if string(data[:len(magic)]) != magic || !bytes.Equal(data[len(magic):headerBytes], sum[:]) {
		return nil, fmt.Errorf("file %s: %w", key, unix.EBADMSG)
	}
	return body, nil
}

// tempPrefix marks files that are being written.
const tempPrefix = ".new-"

// write stores body under a key, atomically. What goes wrong is left at that: the caller has what it needs.
func (c *cache) write(key string, body []byte) {
	c.sweep()
	temp := tempPrefix + key + "." + strconv.Itoa(os.Getpid()) + "." + strconv.FormatInt(time.Now().UnixNano(), 36)
	fd, err := unix.Openat(int(c.dir.Fd()), temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return
	}
	sum := sha256.Sum256(body)
	data := append(append([]byte(magic), sum[:]...), body...)
	n, err := unix.Write(fd, data)
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err == nil && n == len(data) {
		err = unix.Renameat(int(c.dir.Fd()), temp, int(c.dir.Fd()), key)
	}
	if err != nil || n != len(data) {
		unix.Unlinkat(int(c.dir.Fd()), temp, 0) //nolint:errcheck // swept later
	}
}

// staleAge is how old an unfinished file is when its writer is gone for certain.
const staleAge = time.Hour

// sweep removes what crashes left.
func (c *cache) sweep() {
	names, err := c.dir.Readdirnames(-1)
	if err != nil {
		return
	}
	for _, n := range names {
		var st unix.Stat_t
		if !strings.HasPrefix(n, tempPrefix) || unix.Fstatat(int(c.dir.Fd()), n, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		if time.Since(time.Unix(st.Mtim.Unix())) > staleAge {
			unix.Unlinkat(int(c.dir.Fd()), n, 0) //nolint:errcheck // tried again the next time
		}
	}
}
