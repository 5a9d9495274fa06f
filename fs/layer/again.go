package layer

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// An engine that starts a container again deletes it and creates it anew, under the same id. Its root file system is as the
// task left it, and so are its workspaces: the layers are continued. Ids that people choose (agentsafectl run --id, ctr) are
// given to one task after another, so for those what is left of the earlier one is set aside.

// GivenOnce reports whether an id is of the kind that engines make for each container, and never for another one.
func GivenOnce(id string) bool {
	const digits = 64 // of 256 random bits
	return len(id) == digits && strings.Trim(id, "0123456789abcdef") == ""
}

// Continue opens the layers of a container that is created again, for the workspaces that it had: their numbers, owners and
// sizes must be as they were. Nil without an error means that there are none; after an error they are as before. What the
// caller gets is not the container's until Started; if it never is, End notes that.
func Continue(store, id string, want []WorkspaceOptions) (*Layers, error) {
	l, err := Open(store, id)
	if errors.Is(err, ErrNotExist) {
		return nil, nil //nolint:nilnil // see above
	}
	if err != nil {
		return nil, err
	}
	if err := l.continues(want); err != nil {
		l.Close()
		return nil, fmt.Errorf("continue the layers of container %q: %w", id, err)
	}
	return l, nil
}

func (l *Layers) continues(want []WorkspaceOptions) error {
	switch {
	case l.alive():
		return unix.EBUSY
	case l.stuck != nil:
		return l.stuck
	case len(want) != len(l.Workspaces):
		return errors.New("it had other workspaces")
	}
	for i := range want {
		w, o := &l.Workspaces[i], &want[i]
		if w.Destination != o.Destination || w.Source != o.Path || w.Quota != o.Quota || w.InMemory() != o.Memory {
			return fmt.Errorf("the workspace %q was another one, or had other limits", o.Destination)
		}
		host, err := w.host()
		if err != nil {
			return err
		}
		host.Close()
		if _, err := l.base(w); err != nil {
			return err
		}
	}
	if err := l.Settle(); err != nil {
		return err
	}
	// The upper directories are about to be another mount's.
	for _, f := range l.views {
		f.Close()
	}
	l.views = nil
	return nil
}

// Again lays the overlay over the folder of a workspace again and returns it as a detached mount, which the caller owns, as
// with AddWorkspace.
func (l *Layers) Again(source *os.File, o *WorkspaceOptions) (*os.File, error) {
	for i := range l.Workspaces {
		w := &l.Workspaces[i]
		if w.Destination != o.Destination {
			continue
		}
		merged, err := l.layAgain(w, source)
		if err != nil {
			return nil, fmt.Errorf("workspace %q: %w", o.Path, err)
		}
		var root unix.Stat_t
		if err := unix.Fstat(int(merged.Fd()), &root); err != nil {
			merged.Close()
			return nil, fmt.Errorf("stat overlay of workspace %q: %w", o.Path, err)
		}
		w.MergedDev, w.Nested = root.Dev, o.Nested
		return merged, nil
	}
	return nil, fmt.Errorf("workspace %q: %w", o.Destination, ErrNotExist)
}

func (l *Layers) layAgain(w *Workspace, source *os.File) (*os.File, error) {
	host := source
	if w.Copied {
		lower, err := l.lower(w)
		if err != nil {
			return nil, err
		}
		defer lower.Close()
		host = lower
	} else if err := errors.Join(w.isSource(source), CheckLower(w.Source)); err != nil {
		return nil, err
	}
	if err := l.clearVolatile(w); err != nil {
		return nil, err
	}
	return l.overlay(&stack{w: w, host: host, upper: upperDir(w), work: workDir(w)})
}
