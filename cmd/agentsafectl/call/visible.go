package call

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Visible returns text that is safe for a terminal and honest to a model: control characters other than line feed and
// tab, bytes that are no UTF-8, and characters that show nothing or change the direction (zero-width, bidi, tags,
// variation selectors) are written as escapes.
func Visible(s string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || hides(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case hides(r) && r <= 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		case hides(r):
			fmt.Fprintf(&b, `\u{%x}`, r)
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

func hides(r rune) bool {
	switch {
	case r == '\n' || r == '\t' || r == ' ':
		return false
	case r < 0x20 || r == 0x7f, r >= 0x80 && r < 0xa0:
		return true
	case r < 0x300:
		return r == 0xad || r == 0xa0
	case r >= 0xfe00 && r <= 0xfe0f, r >= 0xe0000 && r <= 0xe0fff, r == 0x3164, r == 0x115f, r == 0x1160, r == 0xffa0, r == 0x034f, r == 0x2800:
		return true
	}
	return unicode.In(r, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp) || !unicode.IsGraphic(r) || unicode.Is(unicode.Zs, r)
}
