package socket

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/shim/bundle"
)

// DefaultDir is where sockets are if containerd does not say. Paths of sockets are short (108 bytes), so it is no
// directory of containerd's.
const DefaultDir = "/run/agentsafe-shim"

// Path names the socket of a group.
func Path(dir, containerd, namespace, group string) string {
	h := sha256.New()
	for _, part := range []string{containerd, namespace, group} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return filepath.Join(dir, hex.EncodeToString(h.Sum(nil)))
}

// CheckDir makes the directory and insists that nobody else can enter or change it.
func CheckDir(dir string) error {
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

// ErrInUse says that a shim serves the socket.
var ErrInUse = errors.New("the socket is in use")

// New makes a socket without a name. The caller owns the file.
func New() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create shim socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "shim socket")
	// Before it has a name: the name never exists with another mode, and the umask stays alone.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		f.Close()
		return nil, fmt.Errorf("restrict shim socket: %w", err)
	}
	return f, nil
}

// Listen gives a socket the name of its group. The error is ErrInUse if a living shim has it; one that a dead shim left is
// replaced.
func Listen(f *os.File, path string) error {
	for range 3 {
		err := bind(f, path)
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
		if Alive(path) {
			return ErrInUse
		}
		if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove socket of a dead shim: %w", err)
		}
	}
	return fmt.Errorf("bind shim socket %s: others keep taking it", path)
}

func bind(f *os.File, path string) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("bind shim socket: %w", err)
	}
	cerr := conn.Control(func(fd uintptr) {
		if err = unix.Bind(int(fd), &unix.SockaddrUnix{Name: path}); err == nil {
			err = unix.Listen(int(fd), unix.SOMAXCONN)
		}
	})
	if err = errors.Join(cerr, err); err != nil {
		return fmt.Errorf("bind shim socket %s: %w", path, err)
	}
	return nil
}

// Alive tells whether a shim listens. One whose queue is full is alive, although it can't be connected to.
func Alive(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return true // nothing is known, and what lives must stay
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT)
}

// sweepAge is how old a dead socket has to be: one that has just got its name does not listen yet.
const sweepAge = 10 * time.Second

// Sweep removes the sockets in a directory of shims at which nobody listens any more. A shim that is killed before
// containerd has called it leaves one, and containerd asks nobody to clean up.
func Sweep(dir string, now time.Time) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // it may never have been made
	}
	for _, e := range entries {
		const nameLength = 2 * sha256.Size // as Path makes them
		info, err := e.Info()
		if err != nil || info.Mode().Type() != os.ModeSocket || len(e.Name()) != nameLength || now.Sub(info.ModTime()) < sweepAge {
			continue
		}
		if path := filepath.Join(dir, e.Name()); !Alive(path) {
			unix.Unlink(path) //nolint:errcheck // the next one may do it
		}
	}
}

func trimScheme(address string) string { return strings.TrimPrefix(address, "unix://") }

// DebugSuffix makes the name of the socket for profiles out of the shim's. It exists with -debug alone, 0600 in a
// directory of 0700 like the other.
const DebugSuffix = ".debug"

// RemoveDead removes the socket that the shim of a bundle has left, and older ones beside it. A shim that lives serves
// others of the group.
func RemoveDead(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, bundle.AddressFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read address: %w", err)
	}
	path := trimScheme(strings.TrimSpace(string(data)))
	if !filepath.IsAbs(path) {
		return nil
	}
	if !Alive(path) {
		for _, name := range []string{path, path + DebugSuffix} {
			if err := unix.Unlink(name); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove socket: %w", err)
			}
		}
	}
	Sweep(filepath.Dir(path), time.Now())
	return nil
}
