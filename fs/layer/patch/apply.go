package patch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoMatch says that the file is not the one that a patch was made for.
var ErrNoMatch = errors.New("the patch does not apply")

// Apply returns what the file's old content becomes. A file that the patch deletes has to become empty.
func (f *File) Apply(old string) (string, error) {
	if len(old) > MaxFile {
		return "", fmt.Errorf("a file of %d bytes: want at most %d", len(old), MaxFile)
	}
	changed := old
	var err error
	switch {
	case f.binary != nil:
		changed, err = f.binary.apply(old)
	case len(f.hunks) > 0:
		changed, err = applyHunks(old, f.hunks)
	}
	if err == nil && f.New == "" && changed != "" {
		err = fmt.Errorf("%w: what it deletes has more content than it knows", ErrNoMatch)
	}
	return changed, err
}

func applyHunks(old string, hunks []hunk) (string, error) {
	lines := splitLines(old)
	var out strings.Builder
	done, drift := 0, 0 // lines that are written, and how far hunks are from where they say
	for i := range hunks {
		h := &hunks[i]
		want := h.side('-')
		at := findHunk(lines, done, h, want, drift)
		if at < 0 {
			return "", fmt.Errorf("hunk %d, line %d: %w", i+1, h.oldStart, ErrNoMatch)
		}
		drift = at - h.position()
		for _, l := range lines[done:at] {
			out.WriteString(l)
		}
		for _, l := range h.side('+') {
			out.WriteString(l)
		}
		done = at + len(want)
	}
	for _, l := range lines[done:] {
		out.WriteString(l)
	}
	if out.Len() > MaxFile {
		return "", fmt.Errorf("a file of %d bytes: want at most %d", out.Len(), MaxFile)
	}
	return out.String(), nil
}

func splitLines(s string) []string {
	if s == "" {
		return nil
	}
	lines := strings.SplitAfter(s, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// side returns the lines of the old content ('-') or the new one ('+').
func (h *hunk) side(sign byte) []string {
	var out []string
	for _, l := range h.lines {
		if l[0] == sign || l[0] == ' ' {
			out = append(out, l[1:])
		}
	}
	return out
}

// position is the index of the hunk's first line. A hunk without old lines names the line that it stands behind.
func (h *hunk) position() int {
	if h.oldLines == 0 {
		return h.oldStart
	}
	return max(h.oldStart-1, 0)
}

// findHunk returns where the old lines of a hunk are, at or behind from; -1 if nowhere.
func findHunk(lines []string, from int, h *hunk, want []string, drift int) int {
	last := len(lines) - len(want)
	matches := func(at int) bool {
		return at >= from && at <= last && slices.Equal(lines[at:at+len(want)], want)
	}
	atStart := h.oldStart <= 1
	atEnd := h.lines[len(h.lines)-1][0] != ' '
	switch {
	case atStart && atEnd && last != 0:
		return -1
	case atStart && matches(0):
		return 0
	case atStart:
		return -1
	case atEnd && matches(last):
		return last
	case atEnd:
		return -1
	}
	start := h.position() + drift
	for distance := 0; start-distance >= from || start+distance <= last; distance++ {
		if matches(start - distance) {
			return start - distance
		}
		if matches(start + distance) {
			return start + distance
		}
	}
	return -1
}
