package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Box is the private machine that the tests run in. Its methods work inside only.
type Box struct {
	// Dir is a directory for the tests' files, removed with the box. Paths below it can be long: sockets belong in /run.
	Dir string
	// Tag is part of every name that the box gives to things outside its namespaces, such as cgroups.
	Tag string

	serial atomic.Int64
}

func openBox(dir string) (*Box, error) {
	b := &Box{Dir: dir, Tag: filepath.Base(dir)}
	// On a hybrid host the empty v2 hierarchy beside v1 confuses crun; a pure v2 host has no such directory.
	if err := unix.Unmount("/sys/fs/cgroup/unified", 0); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("unmount cgroup2 of a hybrid host: %w", err)
	}
	// Where engines and runtimes keep files outside /run.
	for _, target := range []string{"/etc", "/opt", "/var/lib"} {
		base := filepath.Join(dir, "overlay", strings.ReplaceAll(target[1:], "/", "-"))
		upper, work := filepath.Join(base, "upper"), filepath.Join(base, "work")
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return nil, err
		}
		data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", target, upper, work)
		if err := unix.Mount("overlay", target, "overlay", 0, data); err != nil {
			return nil, fmt.Errorf("overlay %s: %w", target, err)
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return nil, fmt.Errorf("mount /run: %w", err)
	}
	if err := os.MkdirAll("/run/lock", 0o1777); err != nil {
		return nil, err
	}
	home := filepath.Join(dir, "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	for _, kv := range [][2]string{
		{"HOME", home},
		{"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	} {
		if err := os.Setenv(kv[0], kv[1]); err != nil {
			return nil, err
		}
	}
	for _, k := range []string{"DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DOCKER_HOST", "CONTAINER_HOST", "NOTIFY_SOCKET", "LISTEN_FDS"} {
		if err := os.Unsetenv(k); err != nil {
			return nil, err
		}
	}
	return b, loopbackUp()
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// ID makes a container id that is unique on the machine and carries the box's tag.
func (b *Box) ID() string {
	return fmt.Sprintf("%s-%d", b.Tag, b.serial.Add(1))
}

// CgroupParent is the cgroup path below which engines are told to put their containers.
func (b *Box) CgroupParent() string { return "/" + b.Tag }

// TempDir makes a directory below Dir that lasts as long as the test. Unlike t.TempDir's, its path is short and its
// file system can hold an overlay.
func (b *Box) TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(b.Dir, "t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	return dir
}
