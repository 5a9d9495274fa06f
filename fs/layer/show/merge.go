package show

import (
	"slices"
	"strings"
)

// Merge makes one text of two that came from base: where one side has changed lines and the other has not, the change is
// taken. It returns false where both have changed the same or neighbouring lines in different ways, and for what is no
// text.
func Merge(base, a, b []byte) ([]byte, bool) {
	x, y, z := string(base), string(a), string(b)
	if isBinary(x) || isBinary(y) || isBinary(z) {
		return nil, false
	}
	lines, left, right := linesOf(x), linesOf(y), linesOf(z)
	ours, theirs := compareLines(lines, left), compareLines(lines, right)
	var out strings.Builder
	at := 0 // in base
	put := func(list []string) {
		for _, s := range list {
			out.WriteString(s)
		}
	}
	for len(ours) > 0 || len(theirs) > 0 {
		var e edit
		from := left
		switch {
		case len(theirs) == 0 || len(ours) > 0 && ours[0].a1 < theirs[0].a0:
			e, ours = ours[0], ours[1:]
		case len(ours) == 0 || theirs[0].a1 < ours[0].a0:
			e, from, theirs = theirs[0], right, theirs[1:]
		case sameEdit(ours[0], theirs[0], left, right):
			e, ours, theirs = ours[0], ours[1:], theirs[1:]
		default:
			return nil, false
		}
		put(lines[at:e.a0])
		put(from[e.b0:e.b1])
		at = e.a1
	}
	put(lines[at:])
	return []byte(out.String()), true
}

// sameEdit reports whether both sides have made the same change at the same place.
func sameEdit(a, b edit, left, right []string) bool {
	return a.a0 == b.a0 && a.a1 == b.a1 && slices.Equal(left[a.b0:a.b1], right[b.b0:b.b1])
}
