package container

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/profiles"
)

// A spec may ask for an overlay: `podman -v DIR:/v:O` does, of the folder and two directories of Podman's own. Under a
// profile with rules it is mounted here, of directories that were opened once and judged like the sources of bind mounts:
// the kernel would look their paths up again.

// overlayOptions are the directories of an overlay mount.
type overlayOptions struct{ lower, upper, work []string }

// parseOverlay takes the options of an overlay mount apart. ok is false for options that change what an overlay is.
func parseOverlay(m *rootfs.Mount) (o overlayOptions, ok bool) {
	for _, option := range m.Options {
		switch option.Key {
		case "lowerdir":
			o.lower = splitEscaped(option.Value)
		case "upperdir":
			o.upper = []string{option.Value}
		case "workdir":
			o.work = []string{option.Value}
		default:
			return o, false
		}
	}
	return o, len(o.lower) > 0 && len(o.upper) == len(o.work)
}

// splitEscaped splits the list of lower directories, in which a backslash stands before what belongs to a name.
// Source: overlayfs.rst, "Multiple lower layers".
func splitEscaped(list string) []string {
	out := []string{""}
	escaped := false
	for _, c := range []byte(list) {
		switch {
		case !escaped && c == '\\':
			escaped = true
			continue
		case !escaped && c == ':':
			out = append(out, "")
		default:
			out[len(out)-1] += string([]byte{c})
		}
		escaped = false
	}
	return out
}

// openOverlays mounts the overlays that the spec asks for, detached, in the place of their sources. What can't be mounted
// so has no source, and the profile refuses it.
func (cr *creation) openOverlays() error {
	for i := range cr.plan {
		m := &cr.plan[i]
		if m.Bind || m.Type != "overlay" || cr.src[i] != nil {
			continue
		}
		o, ok := parseOverlay(m)
		if !ok {
			continue
		}
		if err := cr.openOverlay(i, &o); err != nil {
			return fmt.Errorf("mounts[%d] (overlay on %q): %w", i, m.Destination, err)
		}
	}
	return nil
}

func (cr *creation) openOverlay(i int, o *overlayOptions) error {
	var dirs []*os.File
	defer func() { closeFiles(dirs) }()
	var facts []profiles.MountFacts
	open := func(paths []string) ([]*os.File, error) {
		var out []*os.File
		for _, path := range paths {
			dir, fact, err := openOverlayDir(path)
			if err != nil {
				return nil, err
			}
			dirs, out, facts = append(dirs, dir), append(out, dir), append(facts, fact)
		}
		return out, nil
	}
	var overlay rootfs.Overlay
	var err error
	if overlay.Lower, err = open(o.lower); err != nil {
		return err
	}
	if len(o.upper) > 0 {
		both, err := open([]string{o.upper[0], o.work[0]})
		if err != nil {
			return err
		}
		overlay.Upper, overlay.Work = both[0], both[1]
	}
	tree, err := overlay.Open()
	if err != nil {
		return err
	}
	first := facts[0]
	cr.src[i] = &rootfs.Source{Tree: tree, Path: first.Path, Mode: first.Mode, Dev: first.Dev, Ino: first.Ino}
	if cr.overlaid == nil {
		cr.overlaid = map[int][]profiles.MountFacts{}
	}
	cr.overlaid[i] = facts
	return nil
}

// openOverlayDir opens a directory of the host, and says which it is. The caller closes it.
func openOverlayDir(path string) (*os.File, profiles.MountFacts, error) {
	dir, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, profiles.MountFacts{}, fmt.Errorf("open directory: %w", err)
	}
	var st unix.Stat_t
	err = unix.Fstat(int(dir.Fd()), &st)
	var resolved string
	if err == nil {
		resolved, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(int(dir.Fd())))
	}
	if err == nil && !strings.HasPrefix(resolved, "/") {
		err = unix.ENOENT
	}
	if err != nil {
		dir.Close()
		return nil, profiles.MountFacts{}, fmt.Errorf("identify directory %q: %w", path, err)
	}
	return dir, profiles.MountFacts{Path: resolved, Mode: st.Mode, Dev: st.Dev, Ino: st.Ino}, nil
}
