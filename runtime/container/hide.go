package container

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/rootfs"
	"github.com/agentsafe/agentsafe/profiles"
)

const (
	// maxHideEntries bounds what a pattern of filesystem.hide looks at, maxHidden what it may find.
	maxHideEntries = 1_000_000
	maxHidden      = 128
	maxHideDepth   = 64
)

// findHidden looks up the patterns of filesystem.hide among the files that the container is about to see. Patterns that
// begin with "**" are looked for in the bind mounts, others where they point to. Links are not followed, and what is
// made later is not hidden. Too many files or matches are an error: a secret must not be missed because there was much
// to look at.
func (cr *creation) findHidden(p *profiles.Profile) ([]string, error) {
	w := &hideWalk{seen: map[string]bool{}}
	for _, pattern := range p.HidePatterns(profiles.ExpandVariables(cr.spec)) {
		w.pattern = pattern
		if !strings.HasPrefix(pattern, "**/") {
			if err := w.directory(cr.root.Tree, ".", "/", 0); err != nil {
				return nil, fmt.Errorf("filesystem.hide %q: %w", pattern, err)
			}
		}
		for i := range cr.plan {
			if src := cr.src[i]; src != nil && !underSystem(cr.plan[i].Destination) {
				if err := w.bind(src.Tree, src.IsDir(), path.Clean("/"+cr.plan[i].Destination)); err != nil {
					return nil, fmt.Errorf("filesystem.hide %q: %w", pattern, err)
				}
			}
		}
	}
	return w.found, nil
}

// underSystem reports whether a mount is below a directory of the system, where engines put files of their own.
func underSystem(destination string) bool {
	switch first, _, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+destination), "/"), "/"); first {
	case "dev", "proc", "sys", "etc":
		return true
	}
	return false
}

type hideWalk struct {
	pattern string
	entries int
	found   []string
	seen    map[string]bool
}

func (w *hideWalk) add(at string) error {
	if w.seen[at] {
		return nil
	}
	if len(w.found) == maxHidden {
		return fmt.Errorf("matches more than %d paths; name a directory", maxHidden)
	}
	w.seen[at] = true
	w.found = append(w.found, at)
	return nil
}

// bind looks at a mount: at its own place, then at what is in it.
func (w *hideWalk) bind(tree *os.File, dir bool, at string) error {
	hides, below := profiles.MatchHide(w.pattern, at)
	switch {
	case hides:
		return w.add(at)
	case below && dir:
		return w.directory(tree, ".", at, 0)
	}
	return nil
}

// directory looks at what is in a directory, which is called at in the container.
func (w *hideWalk) directory(parent *os.File, unsafeName, at string, depth int) error {
	if depth > maxHideDepth {
		return fmt.Errorf("%s is deeper than %d directories", at, maxHideDepth)
	}
	dir, err := openDirectory(parent, unsafeName)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
		return nil // changed since it was listed
	}
	if errors.Is(err, unix.EACCES) && rootfs.InUserNamespace() {
		return nil // what root of this namespace can't look into, nobody in a container below it can
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", at, err)
	}
	defer dir.Close()
	for {
		const some = 512
		entries, err := dir.ReadDir(some)
		for _, e := range entries {
			if err := w.entry(dir, e, path.Join(at, e.Name()), depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", at, err)
		}
	}
}

func (w *hideWalk) entry(dir *os.File, e fs.DirEntry, at string, depth int) error {
	if w.entries++; w.entries > maxHideEntries {
		return fmt.Errorf("there are more than %d files to look at; name a directory", maxHideEntries)
	}
	hides, below := profiles.MatchHide(w.pattern, at)
	switch {
	case hides:
		return w.add(at)
	case below && e.IsDir():
		return w.directory(dir, e.Name(), at, depth+1)
	}
	return nil
}

// openDirectory opens an entry of a directory that somebody else may be changing.
func openDirectory(parent *os.File, unsafeName string) (*os.File, error) {
	fd, err := unix.Openat2(int(parent.Fd()), unsafeName, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), unsafeName), nil
}
