package tree

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

// own are the names of the attributes that are not the task's.
type own struct{ overlay, opaque, below string }

// ownNames are those of overlays that root mounts, or those of overlays in a user namespace (mount option userxattr):
// there trusted.* can't be written. user.overlay.* does not pass through such an overlay, so that a task can't write it
// either; user.agentsafe.below it can, and then lies about which of its files are new (see package layer).
// Source: overlayfs.rst, "User xattr".
//
//nolint:gochecknoglobals // a probe, asked once
var ownNames = sync.OnceValue(func() own {
	if rootfs.InUserNamespace() {
		return own{"user.overlay.", "user.overlay.opaque", "user.agentsafe.below"}
	}
	return own{"trusted.overlay.", "trusted.overlay.opaque", "trusted.agentsafe.below"}
})

// harmless are the attributes that an overlay without redirects writes into its upper directory for itself.
var harmless = []string{"origin", "impure", "nlink", "uuid", "upper", "protattr"} //nolint:gochecknoglobals // a constant table

// ErrHostile is an attribute by which a layer would stand for other files than it holds.
var ErrHostile = errors.New("the layer holds an attribute that agentsafe's overlays do not write")

// attrs are the extended attributes of an entry that belong to its content: the user's, ACLs and file capabilities.
// The overlay's own come apart.
type attrs struct {
	values map[string]string
	opaque bool
	origin bool // copied up from below
}

// readAttrs reads the attributes of an entry. With upper, those of the overlay are judged.
func readAttrs(dir *os.File, name string, upper bool) (attrs, error) {
	var a attrs
	at := procName(dir, name)
	names := ownNames()
	list, err := listAttrs(at)
	if err != nil {
		return a, fmt.Errorf("list attributes: %w", err)
	}
	for _, n := range list {
		rest, own := strings.CutPrefix(n, names.overlay)
		switch {
		case n == names.below:
			a.origin = true
		case own && !upper:
		case own && rest == "opaque":
			v, err := getAttr(at, n)
			if err != nil {
				return a, err
			}
			if v != "y" {
				return a, fmt.Errorf("%s=%q: %w", n, v, ErrHostile)
			}
			a.opaque = true
		case own && slices.Contains(harmless, rest):
			a.origin = a.origin || rest == "origin"
		case own:
			return a, fmt.Errorf("%s: %w", n, ErrHostile)
		case carried(n):
			v, err := getAttr(at, n)
			if errors.Is(err, unix.ENODATA) {
				continue // removed meanwhile
			}
			if err != nil {
				return a, err
			}
			if a.values == nil {
				a.values = map[string]string{}
			}
			a.values[n] = v
		}
	}
	return a, nil
}

// carried says which attributes belong to the content of a file. Labels of security modules are the host's business.
func carried(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "security.capability" || strings.HasPrefix(name, "system.posix_acl_")
}

func listAttrs(at string) ([]string, error) {
	var small [512]byte
	buf := small[:]
	for {
		n, err := unix.Llistxattr(at, buf)
		switch {
		case errors.Is(err, unix.ERANGE):
			const most = 64 << 10 // XATTR_LIST_MAX
			buf = make([]byte, most)
			continue
		case errors.Is(err, unix.ENOTSUP):
			return nil, nil
		case err != nil:
			return nil, err
		}
		if n == 0 {
			return nil, nil
		}
		return strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00"), nil
	}
}

func getAttr(at, name string) (string, error) {
	const most = 64 << 10 // XATTR_SIZE_MAX
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(at, name, buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, most)
		n, err = unix.Lgetxattr(at, name, buf)
	}
	if err != nil {
		return "", fmt.Errorf("read attribute %s: %w", name, err)
	}
	return string(buf[:n]), nil
}

// writeAttrs makes the attributes of an entry equal to want.
func writeAttrs(dir *os.File, name string, want map[string]string) error {
	have, err := readAttrs(dir, name, false)
	if err != nil || maps.Equal(have.values, want) {
		return err
	}
	at := procName(dir, name)
	for n := range have.values {
		if _, keep := want[n]; !keep {
			if err := unix.Lremovexattr(at, n); err != nil && !errors.Is(err, unix.ENODATA) {
				return fmt.Errorf("remove attribute %s: %w", n, err)
			}
		}
	}
	for n, v := range want {
		if have.values[n] == v {
			continue
		}
		if err := unix.Lsetxattr(at, n, []byte(v), 0); err != nil {
			return fmt.Errorf("set attribute %s: %w", n, err)
		}
	}
	return nil
}

// MarkBelow notes on a file that there is one of its path below, as the overlay does when it copies a file up: one that
// came by rename would look as if it were new.
func (r Root) MarkBelow(unsafePath string) error {
	dir, name, err := r.parent(unsafePath)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Lsetxattr(procName(dir, name), ownNames().below, []byte("y"), 0); err != nil {
		return fmt.Errorf("mark %q: %w", unsafePath, err)
	}
	return nil
}

func setOpaque(dir *os.File, name string) error {
	if err := unix.Lsetxattr(procName(dir, name), ownNames().opaque, []byte("y"), 0); err != nil {
		return fmt.Errorf("mark directory opaque: %w", err)
	}
	return nil
}
