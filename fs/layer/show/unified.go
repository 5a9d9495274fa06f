package show

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// MaxText is the size of the largest file whose lines are compared.
const MaxText = 4 << 20

// Comparison is how one tree differs from another.
type Comparison struct {
	Old, New tree.Root
	Changes  []tree.Change
}

// sides are the contents of a changed path before and after.
type sides struct {
	old, new string
	binary   bool // or too large to compare
}

func (c *Comparison) read(ch *tree.Change) (sides, error) {
	var s sides
	var err error
	if ch.Was != "" || ch.Op == tree.Delete {
		kind := ch.Was
		if ch.Op == tree.Delete {
			kind = ch.Kind
		}
		if s.old, err = content(c.Old, ch.Path, kind, ch.Old.Size); err != nil {
			return s, err
		}
	}
	if ch.Op != tree.Delete {
		if s.new, err = content(c.New, ch.Path, ch.Kind, ch.New.Size); err != nil {
			return s, err
		}
	}
	s.binary = isBinary(s.old) || isBinary(s.new) || max(ch.Old.Size, ch.New.Size) > MaxText
	return s, nil
}

func content(r tree.Root, p string, kind tree.Kind, size int64) (string, error) {
	switch kind {
	case tree.Symlink:
		return r.Readlink(p)
	case tree.File:
	default:
		return "", nil
	}
	if size > MaxText {
		return "", nil
	}
	f, err := r.OpenFile(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxText))
	return string(data), err
}

func isBinary(s string) bool {
	const looked = 8000 // as git does
	return bytes.IndexByte([]byte(s[:min(len(s), looked)]), 0) >= 0
}

// Paint colours a line of a diff: its first argument says what it is ("head", "hunk", "add", "del").
type Paint func(what, text string) string

// Unified writes a diff for people: everything that came from a layer goes through Safe.
func (c *Comparison) Unified(w io.Writer, prefix string, paint Paint) error {
	if paint == nil {
		paint = func(_, text string) string { return text }
	}
	for i := range c.Changes {
		ch := &c.Changes[i]
		if ch.Op == tree.Times {
			continue
		}
		fmt.Fprintln(w, paint("head", Title(prefix, ch)))
		if ch.Kind != tree.File && ch.Was != tree.File {
			if err := c.describe(w, ch, paint); err != nil {
				return err
			}
			continue
		}
		s, err := c.read(ch)
		if err != nil {
			return fmt.Errorf("read %q: %w", ch.Path, err)
		}
		if s.binary {
			fmt.Fprintf(w, "  binary or large: %d bytes before, %d after\n", ch.Old.Size, ch.New.Size)
			continue
		}
		writeHunks(w, s, paint)
	}
	return nil
}

func (c *Comparison) describe(w io.Writer, ch *tree.Change, paint Paint) error {
	if ch.Kind != tree.Symlink && ch.Was != tree.Symlink {
		return nil
	}
	s, err := c.read(ch)
	if err != nil {
		return fmt.Errorf("read %q: %w", ch.Path, err)
	}
	if s.old != "" {
		fmt.Fprintln(w, paint("del", "-> "+Safe(s.old)))
	}
	if s.new != "" {
		fmt.Fprintln(w, paint("add", "+> "+Safe(s.new)))
	}
	return nil
}

// Title is one line about a change, with everything but its content.
func Title(prefix string, ch *tree.Change) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", ch.Op, ch.Kind, SafeName(prefix+ch.Path))
	if ch.Op == tree.Modify && ch.Was != ch.Kind {
		fmt.Fprintf(&b, " (was a %s)", ch.Was)
	}
	if ch.Op == tree.Modify || ch.Op == tree.Meta {
		if ch.Old.Mode != ch.New.Mode {
			fmt.Fprintf(&b, " mode %04o -> %04o", ch.Old.Mode, ch.New.Mode)
		}
		if ch.Old.UID != ch.New.UID || ch.Old.GID != ch.New.GID {
			fmt.Fprintf(&b, " owner %d:%d -> %d:%d", ch.Old.UID, ch.Old.GID, ch.New.UID, ch.New.GID)
		}
	}
	if ch.Op == tree.Add && ch.New.Mode&0o6000 != 0 {
		fmt.Fprintf(&b, " set-id %04o", ch.New.Mode)
	}
	return b.String()
}

func writeHunks(w io.Writer, s sides, paint Paint) {
	a, b := linesOf(s.old), linesOf(s.new)
	line := func(sign, what, text string) {
		missing := !strings.HasSuffix(text, "\n")
		fmt.Fprintln(w, paint(what, sign+Safe(strings.TrimSuffix(text, "\n"))))
		if missing {
			fmt.Fprintln(w, `\ No newline at end of file`)
		}
	}
	for _, h := range hunks(compareLines(a, b), len(a), len(b)) {
		fmt.Fprintln(w, paint("hunk", h.header()))
		h.each(a, b, func(sign byte, text string) {
			line(string(sign), map[byte]string{'+': "add", '-': "del", ' ': ""}[sign], text)
		})
	}
}

func (h *hunk) header() string {
	return fmt.Sprintf("@@ -%s +%s @@", span(h.a0, h.a1), span(h.b0, h.b1))
}

func span(from, to int) string {
	if to == from {
		return fmt.Sprintf("%d,0", from)
	}
	if to == from+1 {
		return fmt.Sprint(from + 1)
	}
	return fmt.Sprintf("%d,%d", from+1, to-from)
}

// each calls f for the lines of a hunk in the order of a unified diff.
func (h *hunk) each(a, b []string, f func(sign byte, text string)) {
	at := h.a0
	for _, e := range h.edits {
		for ; at < e.a0; at++ {
			f(' ', a[at])
		}
		for ; at < e.a1; at++ {
			f('-', a[at])
		}
		for i := e.b0; i < e.b1; i++ {
			f('+', b[i])
		}
	}
	for ; at < h.a1; at++ {
		f(' ', a[at])
	}
}
