package bootstrap

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// socketDir is where sockets are if containerd does not say. Paths of sockets are short (108 bytes), so it is no
// directory of containerd's.
const socketDir = "/run/agentsafe-shim"

// socketPath names the socket of a group.
func socketPath(dir, containerd, namespace, group string) string {
	h := sha256.New()
	for _, part := range []string{containerd, namespace, group} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return filepath.Join(dir, hex.EncodeToString(h.Sum(nil)))
}

// checkSocketDir makes the directory and insists that nobody else can enter or change it.
func checkSocketDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("socket directory %q is not absolute", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil { //nolint:forbidigo // a directory of the host
		return fmt.Errorf("make socket directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("stat socket directory: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("socket directory %s is not a directory of the caller's", dir)
	}
	if st.Mode&0o077 != 0 {
		if err := unix.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("restrict socket directory: %w", err)
		}
	}
	return nil
}

// errInUse says that a shim serves the socket.
var errInUse = errors.New("the socket is in use")

// listen makes a group's socket. The error is errInUse if a living shim has it; one that a dead shim left is replaced.
// The caller owns the file.
func listen(path string) (*os.File, error) {
	for range 3 {
		f, err := bind(path)
		if !errors.Is(err, unix.EADDRINUSE) {
			return f, err
		}
		if alive(path) {
			return nil, errInUse
		}
		if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("remove socket of a dead shim: %w", err)
		}
	}
	return nil, fmt.Errorf("bind shim socket %s: others keep taking it", path)
}

func bind(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create shim socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), path)
	// On the socket before it has a name: the name never exists with another mode, and the umask stays alone.
	err = unix.Fchmod(fd, 0o600)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("bind shim socket %s: %w", path, err)
	}
	return f, nil
}

func alive(path string) bool {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// trimScheme makes a path of an address.
func trimScheme(address string) string { return strings.TrimPrefix(address, "unix://") }
