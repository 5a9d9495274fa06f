package patch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what is read.
const (
	// MaxPatch bounds a patch.
	MaxPatch = 256 << 20
	// MaxFile bounds the content of one file.
	MaxFile = 256 << 20
	// maxFiles bounds the files that a patch names.
	maxFiles = 1 << 20
)

// Git's modes.
const (
	ModeFile       = 0o100644
	ModeExecutable = 0o100755
	ModeSymlink    = 0o120000
)

// File is what a patch does to one file.
type File struct {
	// Old and New are its paths, relative and clean; "" where there is none: of a new file, and of one that is deleted.
	Old, New string
	// OldMode and NewMode are git's modes, 0 where the patch does not say.
	OldMode, NewMode uint32
	// Copy says that Old stays.
	Copy bool

	hunks  []hunk
	binary *binary
}

// hunk is a change at one place: lines with a sign in front.
type hunk struct {
	oldStart, oldLines, newLines int
	lines                        []string
}

// Parse reads a patch, with the first component of every name left out. The text before the first file, and after the
// last, is ignored.
func Parse(text string) ([]File, error) {
	if len(text) > MaxPatch {
		return nil, fmt.Errorf("patch of %d bytes: want at most %d", len(text), MaxPatch)
	}
	p := &parser{lines: strings.SplitAfter(text, "\n")}
	var out []File
	for p.at < len(p.lines) {
		f, err := p.next()
		if err != nil {
			return nil, fmt.Errorf("patch, line %d: %w", p.at+1, err)
		}
		if f == nil {
			break
		}
		if len(out) == maxFiles {
			return nil, fmt.Errorf("patch of more than %d files", maxFiles)
		}
		out = append(out, *f)
	}
	if len(out) == 0 {
		return nil, errors.New("patch: no file is named in it")
	}
	return out, checkTwice(out)
}

// checkTwice refuses what would depend on the order of the files.
func checkTwice(files []File) error {
	written, gone := map[string]bool{}, map[string]bool{}
	for i := range files {
		f := &files[i]
		if f.New != "" {
			if written[f.New] {
				return fmt.Errorf("patch: %q is written twice", f.New)
			}
			written[f.New] = true
		}
		if f.Old != "" && f.Old != f.New && !f.Copy {
			if gone[f.Old] {
				return fmt.Errorf("patch: %q is removed twice", f.Old)
			}
			gone[f.Old] = true
		}
	}
	return nil
}

type parser struct {
	lines []string
	at    int
}

// peek returns the line without its end; "" behind the last one.
func (p *parser) peek() string {
	if p.at >= len(p.lines) {
		return ""
	}
	return strings.TrimSuffix(strings.TrimSuffix(p.lines[p.at], "\n"), "\r")
}

// next reads the next file; nil if there is none.
func (p *parser) next() (*File, error) {
	for ; p.at < len(p.lines); p.at++ {
		if rest, ok := strings.CutPrefix(p.peek(), "diff --git "); ok {
			p.at++
			return p.gitFile(rest)
		}
		if strings.HasPrefix(p.peek(), "--- ") && p.at+1 < len(p.lines) && strings.HasPrefix(p.lines[p.at+1], "+++ ") {
			return p.plainFile()
		}
	}
	return nil, nil //nolint:nilnil // the end
}

// plainFile reads a file of a unified diff without git's headers.
func (p *parser) plainFile() (*File, error) {
	f := &File{}
	if err := p.names(f); err != nil {
		return nil, err
	}
	if f.Old == "" && f.New == "" {
		return nil, errors.New("a file without a name")
	}
	if f.Old != "" && f.New != "" {
		// What is not git's has a name like x.orig for the old file.
		f.Old = f.New
	}
	return f, p.readHunks(f)
}

// names reads --- and +++.
func (p *parser) names(f *File) (err error) {
	if f.Old, err = fileName(strings.TrimPrefix(p.peek(), "--- ")); err != nil {
		return err
	}
	p.at++
	if !strings.HasPrefix(p.peek(), "+++ ") {
		return errors.New("--- without +++")
	}
	if f.New, err = fileName(strings.TrimPrefix(p.peek(), "+++ ")); err != nil {
		return err
	}
	p.at++
	return nil
}

// header is a line between "diff --git" and the change, by its first words.
type header struct {
	prefix string
	take   func(f *File, rest string) error
}

var errSkip = errors.New("no header")

func headers() []header {
	mode := func(of func(*File) *uint32) func(*File, string) error {
		return func(f *File, rest string) error {
			m, err := strconv.ParseUint(strings.TrimSpace(rest), 8, 32)
			if err != nil || m != ModeFile && m != ModeExecutable && m != ModeSymlink {
				return fmt.Errorf("mode %q: want 100644, 100755 or 120000", rest)
			}
			*of(f) = uint32(m)
			return nil
		}
	}
	name := func(of func(*File) *string) func(*File, string) error {
		return func(f *File, rest string) (err error) {
			*of(f), err = unquote(rest)
			if err == nil {
				err = checkPath(*of(f))
			}
			return err
		}
	}
	oldMode, newMode := func(f *File) *uint32 { return &f.OldMode }, func(f *File) *uint32 { return &f.NewMode }
	oldName, newName := func(f *File) *string { return &f.Old }, func(f *File) *string { return &f.New }
	nothing := func(*File, string) error { return nil }
	return []header{
		{"old mode ", mode(oldMode)},
		{"new mode ", mode(newMode)},
		{"deleted file mode ", func(f *File, rest string) error { f.New = ""; return mode(oldMode)(f, rest) }},
		{"new file mode ", func(f *File, rest string) error { f.Old = ""; return mode(newMode)(f, rest) }},
		{"copy from ", func(f *File, rest string) error { f.Copy = true; return name(oldName)(f, rest) }},
		{"copy to ", name(newName)},
		{"rename from ", name(oldName)},
		{"rename to ", name(newName)},
		{"similarity index ", nothing},
		{"dissimilarity index ", nothing},
		{"index ", func(f *File, rest string) error {
			_, m, ok := strings.Cut(rest, " ")
			if !ok {
				return nil
			}
			return mode(oldMode)(f, m)
		}},
	}
}

// gitFile reads a file behind its "diff --git".
func (p *parser) gitFile(rest string) (*File, error) {
	f := &File{}
	known := true
	if err := f.fromTitle(rest); err != nil {
		if !errors.Is(err, errSkip) {
			return nil, err
		}
		known = false // two different names, or names with spaces: the lines below say them
	}
	table := headers()
	for p.at < len(p.lines) {
		i := slices.IndexFunc(table, func(h header) bool { return strings.HasPrefix(p.peek(), h.prefix) })
		if i < 0 {
			break
		}
		if err := table[i].take(f, strings.TrimPrefix(p.peek(), table[i].prefix)); err != nil {
			return nil, err
		}
		p.at++
	}
	switch {
	case strings.HasPrefix(p.peek(), "--- "):
		created, deleted := known && f.Old == "", known && f.New == ""
		if err := p.names(f); err != nil {
			return nil, err
		}
		if created && f.Old != "" || deleted && f.New != "" {
			return nil, errors.New("the names contradict the headers above")
		}
		if err := p.readHunks(f); err != nil {
			return nil, err
		}
	case p.peek() == "GIT binary patch":
		p.at++
		if err := p.readBinary(f); err != nil {
			return nil, err
		}
	case strings.HasPrefix(p.peek(), "Binary files "):
		return nil, errors.New("the patch says that a binary file differs, and not how (git diff --binary does)")
	}
	if f.Old == "" && f.New == "" {
		return nil, errors.New("a file without a name")
	}
	return f, nil
}

// fromTitle takes the names of "diff --git a/NAME b/NAME", where both are the same.
func (f *File) fromTitle(rest string) error {
	var a, b string
	if strings.HasPrefix(rest, `"`) {
		end := closingQuote(rest)
		if end < 0 || end+2 > len(rest) {
			return errSkip
		}
		a, b = rest[:end+1], rest[end+2:]
	} else {
		half := (len(rest) - 1) / 2
		if len(rest) < 2 || rest[half] != ' ' {
			return errSkip
		}
		a, b = rest[:half], rest[half+1:]
	}
	old, err := fileName(a)
	if err != nil {
		return err
	}
	changed, err := fileName(b)
	if err != nil {
		return err
	}
	if old != changed {
		return errSkip
	}
	f.Old, f.New = old, changed
	return nil
}

func closingQuote(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// fileName is a name as ---, +++ and diff --git have it: perhaps quoted, with a date behind it, with a component in front.
func fileName(s string) (string, error) {
	if !strings.HasPrefix(s, `"`) {
		s, _, _ = strings.Cut(s, "\t")
	}
	if s == "/dev/null" {
		return "", nil
	}
	s, err := unquote(s)
	if err != nil {
		return "", err
	}
	_, name, ok := strings.Cut(s, "/")
	if !ok {
		return "", fmt.Errorf("name %q: want a directory in front of it, as in a/%s", s, s)
	}
	return name, checkPath(name)
}

// checkPath refuses what is not a path beneath a directory.
func checkPath(p string) error {
	for name := range strings.SplitSeq(p, "/") {
		if name == "" || name == "." || name == ".." || strings.Contains(name, "\x00") {
			return fmt.Errorf("name %q: it does not lie beneath the workspace", p)
		}
	}
	return nil
}

// unquote reads a name in C's notation, as git writes names with bytes that a line can't hold.
func unquote(s string) (string, error) {
	if !strings.HasPrefix(s, `"`) {
		return s, nil
	}
	end := closingQuote(s)
	if end < 0 {
		return "", fmt.Errorf("name %q: the quote does not end", s)
	}
	escapes := map[byte]byte{'a': 7, 'b': 8, 't': 9, 'n': 10, 'v': 11, 'f': 12, 'r': 13, '"': '"', '\\': '\\'}
	var out []byte
	for i := 1; i < end; i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		i++
		if c, ok := escapes[s[i]]; ok {
			out = append(out, c)
			continue
		}
		const digits = 3
		if i+digits > end {
			return "", fmt.Errorf("name %q: an escape that git does not write", s)
		}
		n, err := strconv.ParseUint(s[i:i+digits], 8, 8)
		if err != nil {
			return "", fmt.Errorf("name %q: an escape that git does not write", s)
		}
		out = append(out, byte(n))
		i += digits - 1
	}
	return string(out), nil
}

// readHunks reads the hunks of a text.
func (p *parser) readHunks(f *File) error {
	for strings.HasPrefix(p.peek(), "@@ -") {
		h, err := p.readHunk()
		if err != nil {
			return err
		}
		f.hunks = append(f.hunks, *h)
	}
	if len(f.hunks) == 0 {
		return errors.New("a change of a text without hunks")
	}
	return nil
}

func (p *parser) readHunk() (*hunk, error) {
	h := &hunk{}
	ranges, _, ok := strings.Cut(strings.TrimPrefix(p.peek(), "@@ -"), " @@")
	old, changed, ok2 := strings.Cut(ranges, " +")
	if !ok || !ok2 {
		return nil, fmt.Errorf("%.80q is not the head of a hunk", p.peek())
	}
	var err, err2 error
	h.oldStart, h.oldLines, err = lineRange(old)
	_, h.newLines, err2 = lineRange(changed)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	p.at++
	old1, new1 := 0, 0
	for old1 < h.oldLines || new1 < h.newLines || p.at < len(p.lines) && strings.HasPrefix(p.lines[p.at], `\`) {
		if p.at >= len(p.lines) || p.lines[p.at] == "" {
			return nil, errors.New("the patch ends within a hunk")
		}
		line := p.lines[p.at]
		switch line[0] {
		case '\n', '\r':
			line = " " + line // a space at the end of a line that a mail program has taken away
			old1, new1 = old1+1, new1+1
		case ' ':
			old1, new1 = old1+1, new1+1
		case '-':
			old1++
		case '+':
			new1++
		case '\\':
			if len(h.lines) == 0 {
				return nil, errors.New("a hunk begins with the end of a file")
			}
			last := &h.lines[len(h.lines)-1]
			*last = strings.TrimSuffix(*last, "\n")
			p.at++
			continue
		default:
			return nil, fmt.Errorf("%.80q in a hunk", line)
		}
		h.lines = append(h.lines, line)
		p.at++
	}
	if old1 != h.oldLines || new1 != h.newLines || len(h.lines) == 0 {
		return nil, errors.New("a hunk has other lines than its head says")
	}
	return h, nil
}

// lineRange reads START[,COUNT].
func lineRange(s string) (start, count int, err error) {
	first, second, ok := strings.Cut(s, ",")
	count = 1
	start, err = strconv.Atoi(first)
	if ok && err == nil {
		count, err = strconv.Atoi(second)
	}
	if err != nil || start < 0 || count < 0 || start > MaxPatch || count > MaxPatch {
		return 0, 0, fmt.Errorf("%.40q is not a range of lines", s)
	}
	return start, count, nil
}
