package layer

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// Content is what a file of a workspace is: a regular file with its bytes, or a symlink with its target.
type Content struct {
	Symlink    bool
	Executable bool
	Data       string
}

// Edit is what a path becomes. Paths are the container's, or relative to its only workspace.
type Edit struct {
	Path string
	// Content is nil where the path is to be deleted. A directory that has nothing left goes with it.
	Content *Content
	// From is the path whose owner, mode and attributes the file gets; "" is Path itself.
	From string
}

// Read returns what is at a path of a workspace; nil if there is nothing. Directories and special files are an error, and
// files of more than most bytes.
func (l *Layers) Read(unsafePath string, most int64) (*Content, error) {
	w, rest, err := l.inWorkspace(unsafePath)
	if err != nil {
		return nil, err
	}
	v, err := l.view(w)
	if err != nil {
		return nil, err
	}
	kind, attr, err := v.KindAt(rest)
	switch {
	case tree.Missing(err):
		return nil, nil //nolint:nilnil // nothing
	case err != nil:
		return nil, fmt.Errorf("read %q: %w", unsafePath, err)
	case kind == tree.Symlink:
		target, err := v.Readlink(rest)
		return &Content{Symlink: true, Data: target}, err
	case kind != tree.File:
		return nil, fmt.Errorf("read %q: it is a %s: %w", unsafePath, kind, unix.EINVAL)
	}
	f, err := v.OpenFile(rest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", unsafePath, err)
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("read %q: more than %d bytes: %w", unsafePath, most, unix.EFBIG)
	}
	return &Content{Executable: attr.Mode&0o100 != 0, Data: string(data)}, nil
}

func (l *Layers) inWorkspace(unsafePath string) (*Workspace, string, error) {
	w, rest, err := l.resolve(unsafePath)
	if err == nil && rest == "" {
		err = fmt.Errorf("%q is a workspace itself", unsafePath)
	}
	return w, rest, err
}

// Edit makes a transaction of what plan returns, and commits it as one of an exec: what others change meanwhile is a
// conflict, and it can be undone. plan reads by [Layers.Read]; if it fails there is no transaction.
func (l *Layers) Edit(command []string, plan func() ([]Edit, error)) (*Transaction, error) {
	return l.Apply(command, func(n int) error {
		edits, err := plan()
		if err != nil {
			return err
		}
		by := map[string]*editing{}
		for i := range edits {
			w, rest, err := l.inWorkspace(edits[i].Path)
			if err != nil {
				return err
			}
			if by[w.Name] == nil {
				if by[w.Name], err = l.newEditing(n, w); err != nil {
					return err
				}
				defer by[w.Name].close()
			}
			if err := by[w.Name].add(l, rest, &edits[i]); err != nil {
				return err
			}
		}
		for _, e := range by {
			if err := e.run(); err != nil {
				return err
			}
		}
		return nil
	})
}

// editing is the edits of one workspace, by their paths in it.
type editing struct {
	view, upper tree.Root
	close       func()
	write       map[string]*Edit
	from        map[string]string
	remove      map[string]bool
}

func (l *Layers) newEditing(n int, w *Workspace) (*editing, error) {
	e := &editing{write: map[string]*Edit{}, from: map[string]string{}, remove: map[string]bool{}}
	var err error
	if e.view, err = l.view(w); err != nil {
		return nil, err
	}
	e.upper, e.close, err = l.upper(w, txUpper(n, w))
	return e, err
}

func (e *editing) add(l *Layers, rest string, edit *Edit) error {
	if edit.Content == nil {
		e.remove[rest] = true
		return nil
	}
	e.write[rest], e.from[rest] = edit, rest
	if edit.From == "" {
		return nil
	}
	from, source, err := l.inWorkspace(edit.From)
	if err != nil {
		return err
	}
	to, _, err := l.inWorkspace(edit.Path)
	if err == nil && from == to {
		e.from[rest] = source
	}
	return err
}

// run writes the transaction's upper directory.
func (e *editing) run() error {
	for p := range e.write {
		delete(e.remove, p)
	}
	if err := e.collapse(); err != nil {
		return err
	}
	var w tree.Writer
	// What is removed first: a directory may come in the place of a file.
	for _, p := range sortedKeys(e.remove) {
		if err := w.Whiteout(e.view, e.upper, p); err != nil {
			return err
		}
	}
	for _, p := range sortedKeys(e.write) {
		if err := e.put(p); err != nil {
			return err
		}
	}
	return nil
}

func sortedKeys[T any](m map[string]T) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// collapse lets a directory go with the last thing in it, as git does.
func (e *editing) collapse() error {
	paths := sortedKeys(e.remove)
	slices.Reverse(paths) // deeper ones first
	for i := 0; i < len(paths); i++ {
		parent := path.Dir(paths[i])
		if parent == "." || e.remove[parent] || !e.remove[paths[i]] {
			continue
		}
		names, err := e.view.Names(parent)
		if err != nil {
			return err
		}
		left := slices.ContainsFunc(names, func(name string) bool { return !e.remove[parent+"/"+name] })
		for p := range e.write {
			left = left || strings.HasPrefix(p, parent+"/")
		}
		if left {
			continue
		}
		for _, name := range names {
			delete(e.remove, parent+"/"+name)
		}
		e.remove[parent] = true
		paths = append(paths, parent)
	}
	return nil
}

// put writes one file.
func (e *editing) put(p string) error {
	c := e.write[p].Content
	owner, err := e.parents(p)
	if err != nil {
		return err
	}
	var w tree.Writer
	kind, attr, err := e.view.KindAt(e.from[p])
	if err != nil && !tree.Missing(err) {
		return fmt.Errorf("write %q: %w", p, err)
	}
	if there, _, err := e.view.KindAt(p); err == nil && there == tree.Dir {
		return fmt.Errorf("write %q: there is a directory: %w", p, unix.EISDIR)
	}
	if c.Symlink {
		if err := w.Remove(e.upper, p); err != nil {
			return err
		}
		return w.MakeSymlink(e.upper, p, c.Data, owner)
	}
	const plain, executable = 0o644, 0o111
	mode := uint32(plain)
	if kind == tree.File {
		mode = attr.Mode
		err = w.PutAs(e.view, e.from[p], e.upper, p)
	} else {
		err = errors.Join(w.Remove(e.upper, p), w.MakeFile(e.upper, p, owner))
	}
	if err != nil {
		return err
	}
	if mode &^= executable; c.Executable {
		mode |= mode >> 2 & executable // for those who can read it
	}
	return w.Overwrite(e.upper, p, c.Data, mode)
}

// parents makes the directories above a path, those that are new as their parent's owner's, whose attributes it returns.
func (e *editing) parents(p string) (*tree.Attr, error) {
	const newMode = 0o755
	_, owner, err := e.view.KindAt("")
	if err != nil {
		return nil, err
	}
	var w tree.Writer
	for i := range len(p) {
		if p[i] != '/' {
			continue
		}
		dir := p[:i]
		kind, attr, err := e.view.KindAt(dir)
		switch {
		case err == nil && kind == tree.Dir && !e.remove[dir]:
			if !e.upper.IsDir(dir) {
				err = w.Put(e.view, e.upper, dir)
			}
			owner = attr
		case tree.Missing(err) || e.remove[dir]:
			if !e.upper.IsDir(dir) {
				err = errors.Join(w.Remove(e.upper, dir), w.MakeDir(e.upper, dir, &tree.Attr{Mode: newMode, UID: owner.UID, GID: owner.GID}))
			} else {
				err = nil
			}
		case err == nil:
			err = unix.ENOTDIR
		}
		if err != nil {
			return nil, fmt.Errorf("make directory %q: %w", dir, err)
		}
	}
	return &owner, nil
}
