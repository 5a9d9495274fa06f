package show

import (
	"archive/tar"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// Tar writes changes as a tar archive.
type Tar struct{ w *tar.Writer }

// TarOptions say what an archive is for.
type TarOptions struct {
	// Prefix is put in front of each path; it ends in a slash.
	Prefix string
	// Whiteouts writes deletions as the files .wh.NAME of an OCI layer. Source: image-spec 1.1, layer.md "Whiteouts".
	Whiteouts bool
}

// NewTar starts an archive. Close ends it.
func NewTar(w io.Writer) *Tar { return &Tar{tar.NewWriter(w)} }

// Close writes the end of the archive.
func (t *Tar) Close() error {
	if err := t.w.Close(); err != nil {
		return fmt.Errorf("end archive: %w", err)
	}
	return nil
}

// Add adds the changes of one comparison, and returns the paths that it leaves out: devices and sockets, which whoever
// unpacks an archive of a task's files is not to make, and in an OCI layer files whose names mean deletions there: a task
// that makes .wh.passwd would have passwd deleted (TestAttack_TarWhiteoutName).
func (t *Tar) Add(c *Comparison, o TarOptions) (left []string, err error) {
	for i := range c.Changes {
		ch := &c.Changes[i]
		var err error
		switch {
		case ch.Op == tree.Times:
		case o.Whiteouts && strings.Contains("/"+ch.Path, "/.wh."), ch.Op != tree.Delete && (ch.Kind == tree.Device || ch.Kind == tree.Socket):
			left = append(left, ch.Path)
		case ch.Op == tree.Delete && o.Whiteouts:
			dir, name := path.Split(o.Prefix + ch.Path)
			err = t.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + ".wh." + name, Mode: 0o644, Format: tar.FormatPAX})
		case ch.Op == tree.Delete:
		default:
			err = t.entry(c, ch, o)
		}
		if err != nil {
			return left, fmt.Errorf("archive %q: %w", ch.Path, err)
		}
	}
	return left, nil
}

func (t *Tar) entry(c *Comparison, ch *tree.Change, o TarOptions) error {
	h := &tar.Header{
		Name: o.Prefix + ch.Path, Mode: int64(ch.New.Mode), Uid: int(ch.New.UID), Gid: int(ch.New.GID),
		ModTime: time.Unix(0, ch.New.Mtime), Format: tar.FormatPAX,
	}
	switch ch.Kind {
	case tree.Dir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case tree.Symlink:
		target, err := c.New.Readlink(ch.Path)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case tree.FIFO:
		h.Typeflag = tar.TypeFifo
	case tree.File:
		return t.file(c, ch, h)
	default:
		return nil
	}
	return t.w.WriteHeader(h)
}

// file writes what the file has when it is opened: it may change while it is read.
func (t *Tar) file(c *Comparison, ch *tree.Change, h *tar.Header) error {
	f, err := c.New.OpenFile(ch.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size()
	if err := t.w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(t.w, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("it became shorter while it was read: %w", io.ErrUnexpectedEOF)
	}
	return err
}
