package rootless

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	runtimeDirEnv = "XDG_RUNTIME_DIR"
	dirName       = "agentsafe"
)

// ErrNoRuntimeDir says that there is no place for state that dies with the user's session.
var ErrNoRuntimeDir = errors.New("XDG_RUNTIME_DIR is not set and there is no /run/user/UID: name a directory of yours, mode 0700, with XDG_RUNTIME_DIR or --root")

// StateDir is where an ordinary user's containers have their state: $XDG_RUNTIME_DIR/agentsafe.
func StateDir() (string, error) {
	dir, err := runtimeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, dirName), nil
}

// runtimeDir returns XDG_RUNTIME_DIR, or what a login would have set it to. Source: XDG Base Directory Specification.
func runtimeDir() (string, error) {
	dir := os.Getenv(runtimeDirEnv)
	if dir == "" {
		dir = "/run/user/" + strconv.Itoa(os.Geteuid())
		var st unix.Stat_t
		if unix.Lstat(dir, &st) != nil || int(st.Uid) != os.Geteuid() || os.Geteuid() == 0 {
			return "", ErrNoRuntimeDir
		}
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("%s=%q: not an absolute path", runtimeDirEnv, dir)
	}
	return filepath.Clean(dir), CheckPrivate(dir)
}

// DataDir is where an ordinary user's layers, images, caches and evidence lie: $XDG_DATA_HOME/agentsafe, which is
// ~/.local/share/agentsafe unless somebody has set it. Podman starts the runtime without HOME: then passwd tells.
func DataDir() (string, error) {
	dir := os.Getenv("XDG_DATA_HOME")
	if dir == "" {
		home := os.Getenv("HOME")
		if !filepath.IsAbs(home) {
			home = passwdHome()
		}
		if !filepath.IsAbs(home) {
			return "", errors.New("neither XDG_DATA_HOME nor HOME is an absolute path: name a directory of yours with --data-dir")
		}
		dir = filepath.Join(home, ".local", "share")
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("XDG_DATA_HOME=%q: not an absolute path", dir)
	}
	return filepath.Join(dir, dirName), nil
}

// passwdHome is the home directory that the host's passwd has for the user; "" if it has none.
func passwdHome() string {
	uid := os.Geteuid()
	if m, err := ReadMap("uid_map"); err == nil && uid == 0 {
		uid, _ = m.Outside(uid)
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return ""
	}
	return account(string(passwd), uid).home
}

// CheckPrivate refuses a directory that others own or can write to, or that is a symlink: who can write to it decides
// what is believed of containers.
func CheckPrivate(dir string) error {
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	const othersWrite = 0o022
	if int(st.Uid) != os.Geteuid() || st.Mode&othersWrite != 0 {
		return fmt.Errorf("%s belongs to uid %d, mode %04o: want a directory of uid %d that nobody else can write to: %w",
			dir, st.Uid, st.Mode&0o7777, os.Geteuid(), unix.EPERM)
	}
	return nil
}
