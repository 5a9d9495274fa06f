package harness

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// staleAfter is how long an entry with another key is kept: another checkout may be using it.
const staleAfter = 24 * time.Hour

// CacheDir is where what is slow to make is kept, outside the repository: AGENTSAFE_CACHE, or agentsafe below the
// user's cache directory.
func CacheDir() (string, error) {
	if dir := os.Getenv(envCache); dir != "" {
		return dir, nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(base, "agentsafe"), nil
}

// Cached returns the directory of the entry that name and recipe describe, and has build fill it if there is none.
// An entry appears whole or not at all, and one process builds at a time.
func Cached(name, recipe string, build func(dir string) error) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	base := filepath.Join(cache, "images")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(filepath.Join(base, name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()

	sum := sha256.Sum256([]byte(recipe))
	dir := filepath.Join(base, name+"-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	removeStale(base, name+"-")
	tmp, err := os.MkdirTemp(base, ".making-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	if err := build(tmp); err != nil {
		return "", fmt.Errorf("make %s: %w", name, err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return "", err
	}
	return dir, nil
}

// lockFile takes an exclusive lock that ends with unlock or with the process.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

func removeStale(base, prefix string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && e.IsDir() && strings.HasPrefix(e.Name(), prefix) && time.Since(info.ModTime()) > staleAfter {
			_ = os.RemoveAll(filepath.Join(base, e.Name()))
		}
	}
}
