package show

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Safe returns text that means to a terminal, and to a reader, what it looks like: control characters, bidirectional
// marks, invisible characters and bytes that are no UTF-8 are written as escapes. Tabs stay.
func Safe(unsafeText string) string {
	plain := true
	for i := range len(unsafeText) {
		if c := unsafeText[i]; c < ' ' && c != '\t' || c >= 0x7f || c == '\\' {
			plain = false
			break
		}
	}
	if plain {
		return unsafeText
	}
	var b strings.Builder
	for i := 0; i < len(unsafeText); {
		r, n := utf8.DecodeRuneInString(unsafeText[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			fmt.Fprintf(&b, `\x%02x`, unsafeText[i])
		case r == '\t' || r == ' ' || visible(r):
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += n
	}
	return b.String()
}

// SafeName is Safe for a name in a table: a tab or a backslash is escaped as well, so that no two names look the same.
func SafeName(unsafeName string) string {
	s := strings.ReplaceAll(unsafeName, `\`, `\\`)
	return strings.ReplaceAll(Safe(s), "\t", `\t`)
}

// visible says which characters leave a mark of their own. Format characters (Cf) hold the bidirectional marks, joiners
// and tags; fillers of Hangul and variation selectors are letters and marks that can't be seen.
func visible(r rune) bool {
	switch {
	case r == 0x115f || r == 0x1160 || r == 0x3164 || r == 0xffa0 || r == 0x034f || r == 0x17b4 || r == 0x17b5 || r == 0x2800:
		return false
	case r >= 0xfe00 && r <= 0xfe0f || r >= 0xe0100 && r <= 0xe01ef || r >= 0x180b && r <= 0x180f:
		return false
	}
	return unicode.IsGraphic(r) && !unicode.IsSpace(r) && !unicode.Is(unicode.Cf, r)
}
