package show

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1" //nolint:gosec // git's names of objects; nothing is protected by it
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// Patch writes the changes as git writes them, with binary files in full, so that `git apply` takes them. prefix is put
// in front of each path. It returns the paths that a patch can't hold: devices, FIFOs, sockets, changes of owner, git's
// own directory.
func (c *Comparison) Patch(w io.Writer, prefix string) (left []string, err error) {
	for i := range c.Changes {
		ch := &c.Changes[i]
		if ch.Op == tree.Times || ch.Kind == tree.Dir && ch.Op != tree.Delete {
			continue
		}
		if ch.Op == tree.Delete && ch.Kind == tree.Dir {
			list, lerr := c.below(ch.Path)
			if lerr != nil {
				return left, lerr
			}
			for j := range list {
				if err := c.patchOne(w, prefix, &list[j], &left); err != nil {
					return left, err
				}
			}
			continue
		}
		if err := c.patchOne(w, prefix, ch, &left); err != nil {
			return left, err
		}
	}
	return left, nil
}

// below lists the files of a deleted directory as deletions.
func (c *Comparison) below(p string) ([]tree.Change, error) {
	list, err := tree.List(c.Old, tree.Root{}, tree.ListOptions{Below: []string{p}, AnyOverlay: true})
	if err != nil {
		return nil, err
	}
	var out []tree.Change
	for _, ch := range list {
		if ch.Kind != tree.Dir {
			out = append(out, tree.Change{Path: ch.Path, Op: tree.Delete, Kind: ch.Kind, Old: ch.New})
		}
	}
	return out, nil
}

// ofGit reports whether a path is of git's own directory, which git apply refuses.
func ofGit(p string) bool {
	for part := range strings.SplitSeq(p, "/") {
		if strings.EqualFold(part, ".git") {
			return true
		}
	}
	return false
}

func inGit(k tree.Kind) bool { return k == tree.File || k == tree.Symlink }

func (c *Comparison) patchOne(w io.Writer, prefix string, ch *tree.Change, left *[]string) error {
	if !inGit(ch.Kind) || ofGit(ch.Path) || ch.Op == tree.Meta && gitMode(ch.Kind, ch.Old.Mode) == gitMode(ch.Kind, ch.New.Mode) {
		*left = append(*left, prefix+ch.Path)
		return nil
	}
	if ch.Op == tree.Modify && ch.Was != ch.Kind {
		// git has no change of kind: one file goes, another comes.
		if inGit(ch.Was) {
			gone := tree.Change{Path: ch.Path, Op: tree.Delete, Kind: ch.Was, Old: ch.Old}
			if err := c.patchOne(w, prefix, &gone, left); err != nil {
				return err
			}
		}
		come := *ch
		come.Op, come.Was, come.Old = tree.Add, "", tree.Attr{}
		return c.patchOne(w, prefix, &come, left)
	}
	s, err := c.whole(ch)
	if err != nil {
		return fmt.Errorf("read %q: %w", ch.Path, err)
	}
	writePatch(w, prefix+ch.Path, ch, s)
	return nil
}

// whole reads both sides of a change without a bound: a patch is complete or none.
func (c *Comparison) whole(ch *tree.Change) (sides, error) {
	var s sides
	read := func(r tree.Root, kind tree.Kind) (string, error) {
		if kind == tree.Symlink {
			return r.Readlink(ch.Path)
		}
		f, err := r.OpenFile(ch.Path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		data, err := io.ReadAll(f)
		return string(data), err
	}
	var err error
	if ch.Op != tree.Add {
		if s.old, err = read(c.Old, ch.Kind); err != nil {
			return s, err
		}
	}
	if ch.Op != tree.Delete {
		if s.new, err = read(c.New, ch.Kind); err != nil {
			return s, err
		}
	}
	s.binary = isBinary(s.old) || isBinary(s.new)
	return s, nil
}

func gitMode(k tree.Kind, mode uint32) string {
	switch {
	case k == tree.Symlink:
		return "120000"
	case mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

func writePatch(w io.Writer, p string, ch *tree.Change, s sides) {
	a, b := quotePath("a/"+p), quotePath("b/"+p)
	fmt.Fprintf(w, "diff --git %s %s\n", a, b)
	oldMode, newMode := gitMode(ch.Kind, ch.Old.Mode), gitMode(ch.Kind, ch.New.Mode)
	suffix := ""
	oldName, newName := a, b
	switch {
	case ch.Op == tree.Add:
		fmt.Fprintf(w, "new file mode %s\n", newMode)
		oldName = "/dev/null"
	case ch.Op == tree.Delete:
		fmt.Fprintf(w, "deleted file mode %s\n", oldMode)
		newName = "/dev/null"
	case oldMode != newMode:
		fmt.Fprintf(w, "old mode %s\nnew mode %s\n", oldMode, newMode)
	default:
		suffix = " " + newMode
	}
	if s.old == s.new {
		if ch.Op == tree.Add || ch.Op == tree.Delete { // an empty file
			fmt.Fprintf(w, "index %s..%s\n", blob(ch.Op != tree.Add, s.old), blob(ch.Op != tree.Delete, s.new))
		}
		return
	}
	fmt.Fprintf(w, "index %s..%s%s\n", blob(ch.Op != tree.Add, s.old), blob(ch.Op != tree.Delete, s.new), suffix)
	if s.binary {
		fmt.Fprint(w, "GIT binary patch\n")
		writeLiteral(w, s.new)
		writeLiteral(w, s.old)
		return
	}
	fmt.Fprintf(w, "--- %s\n+++ %s\n", tabAfterSpace(oldName), tabAfterSpace(newName))
	x, y := linesOf(s.old), linesOf(s.new)
	for _, h := range hunks(compareLines(x, y), len(x), len(y)) {
		fmt.Fprintln(w, h.header())
		h.each(x, y, func(sign byte, text string) {
			fmt.Fprintf(w, "%c%s", sign, text)
			if !strings.HasSuffix(text, "\n") {
				fmt.Fprint(w, "\n\\ No newline at end of file\n")
			}
		})
	}
}

// tabAfterSpace ends a name with spaces in it, as git does, so that what follows is not taken for a date.
func tabAfterSpace(name string) string {
	if strings.Contains(name, " ") && !strings.HasPrefix(name, `"`) {
		return name + "\t"
	}
	return name
}

// blob is git's name of a content; all zeros if there is none.
func blob(exists bool, s string) string {
	if !exists {
		return strings.Repeat("0", 40)
	}
	h := sha1.New() //nolint:gosec // see above
	fmt.Fprintf(h, "blob %d\x00%s", len(s), s)
	return hex.EncodeToString(h.Sum(nil))
}

// quotePath writes a path as git does: in C's notation if it has bytes that a line can't hold as they are.
func quotePath(p string) string {
	clean := true
	for i := range len(p) {
		if p[i] < ' ' || p[i] >= 0x7f || p[i] == '"' || p[i] == '\\' {
			clean = false
		}
	}
	if clean {
		return p
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(p) {
		switch c := p[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// writeLiteral writes a content as git's binary patches hold it: deflated, in base 85, up to 52 bytes a line.
func writeLiteral(w io.Writer, s string) {
	var z bytes.Buffer
	deflate := zlib.NewWriter(&z)
	io.WriteString(deflate, s) //nolint:errcheck // memory
	deflate.Close()
	fmt.Fprintf(w, "literal %d\n", len(s))
	const most = 52
	for data := z.Bytes(); len(data) > 0; data = data[min(most, len(data)):] {
		line := data[:min(most, len(data))]
		length := byte('A' + len(line) - 1)
		if len(line) > 26 {
			length = byte('a' + len(line) - 27)
		}
		fmt.Fprintf(w, "%c%s\n", length, base85(line))
	}
	fmt.Fprintln(w)
}

// base85 is git's alphabet; the last group is filled up with zeros.
func base85(data []byte) string {
	const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
	var b strings.Builder
	for ; len(data) > 0; data = data[min(4, len(data)):] {
		var group [4]byte
		copy(group[:], data)
		v := uint32(group[0])<<24 | uint32(group[1])<<16 | uint32(group[2])<<8 | uint32(group[3])
		var digits [5]byte
		for i := 4; i >= 0; i-- {
			digits[i] = alphabet[v%85]
			v /= 85
		}
		b.Write(digits[:])
	}
	return b.String()
}
