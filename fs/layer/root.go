package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
	"github.com/agentsafe/agentsafe/fs/rootfs"
)

// CompareRoot compares the overlay that an engine has mounted at a point with what it lies on: what a container has
// changed in its root file system. mountinfo is a file of proc(5) in which the mount stands. Nothing is changed; the upper
// directory stays the engine's.
func CompareRoot(mountinfo, point string) (*Comparison, error) {
	data, err := os.ReadFile(mountinfo)
	if err != nil {
		return nil, fmt.Errorf("look for the root file system: %w", err)
	}
	upper, lowers, err := parseOverlay(string(data), point)
	if err != nil {
		return nil, fmt.Errorf("root file system at %q: %w", point, err)
	}
	c := &Comparison{}
	below, err := c.openLowers(lowers)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("root file system at %q: %w", point, err)
	}
	above, err := c.openDir(upper)
	if err == nil {
		err = c.add(&Workspace{Source: upper}, tree.NewRoot(below), tree.NewRoot(above), tree.ListOptions{})
	}
	if errors.Is(err, tree.ErrHostile) {
		err = fmt.Errorf("%w (the engine mounts with redirect_dir or metacopy: its own diff knows how to read that)", err)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("root file system at %q: %w", point, err)
	}
	return c, nil
}

// openDir opens a directory of the engine's until the comparison is closed. The engine names it, also by a symlink.
func (c *Comparison) openDir(path string) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	c.close = append(c.close, func() { f.Close() })
	return f, nil
}

// openLowers returns a view of directories that lie on each other, the first on top.
func (c *Comparison) openLowers(paths []string) (*os.File, error) {
	var dirs []*os.File
	for _, p := range paths {
		f, err := c.openDir(p)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, f)
	}
	if len(dirs) == 1 {
		return dirs[0], nil
	}
	o := rootfs.Overlay{Lower: dirs}
	mounted, err := o.Open()
	if err != nil {
		return nil, err
	}
	defer mounted.Close()
	f, err := reopen(mounted)
	if err == nil {
		c.close = append(c.close, func() { f.Close() })
	}
	return f, err
}

// parseOverlay finds the topmost overlay at a point of a mountinfo and returns its directories.
func parseOverlay(mountinfo, point string) (upper string, lowers []string, err error) {
	err = fmt.Errorf("no overlay is mounted there: %w", unix.ENOENT)
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		const pointField, optionField = 4, 2
		if !ok || len(fields) <= pointField || len(kind) <= optionField || unescapeMount(fields[pointField]) != point {
			continue
		}
		if kind[0] != "overlay" {
			upper, lowers, err = "", nil, fmt.Errorf("it is a %s, no overlay: %w", kind[0], unix.ENOTSUP)
			continue
		}
		upper, lowers = overlayDirs(unescapeMount(kind[optionField]))
		if err = nil; upper == "" || len(lowers) == 0 {
			err = fmt.Errorf("its overlay is read-only: %w", unix.EROFS)
		}
		for _, p := range append(slices.Clip(lowers), upper) {
			if err == nil && !filepath.IsAbs(p) {
				err = fmt.Errorf("the engine has mounted %q by a relative path, and nobody can tell where that is: %w", p, unix.ENOTSUP)
			}
		}
	}
	return upper, lowers, err
}

// overlayDirs reads the options of an overlay. Source: ovl_show_options; a comma or a colon in a name has a backslash.
func overlayDirs(options string) (upper string, lowers []string) {
	for _, o := range splitEscaped(options, ',') {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "upperdir":
			upper = strings.ReplaceAll(value, `\`, "")
		case "lowerdir":
			for _, l := range splitEscaped(value, ':') {
				if l != "" {
					lowers = append(lowers, strings.ReplaceAll(l, `\`, ""))
				}
			}
		case "lowerdir+":
			lowers = append(lowers, strings.ReplaceAll(value, `\`, ""))
		}
	}
	return upper, lowers
}

func splitEscaped(s string, at byte) []string {
	var out []string
	begin := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case at:
			out = append(out, s[begin:i])
			begin = i + 1
		}
	}
	return append(out, s[begin:])
}
