package egress

import (
	"strings"
	"unicode/utf8"
)

// belowPath compares by segments: /pool covers /pool and /pool/x, not /poolside. A path with escapes is below a prefix if it
// is as it was sent, for a server that does not decode them, and as it is decoded. What a server may read as yet another
// path is below none.
func belowPath(unsafePath, prefix string) bool {
	decoded, ok := decodePath(unsafePath)
	return ok && hasPathPrefix(unsafePath, prefix) && hasPathPrefix(decoded, prefix)
}

func hasPathPrefix(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/' || prefix[len(prefix)-1] == '/')
}

// lookalikes are what a server that converts to another character set may take for a dot or a slash.
const lookalikes = "\u2024\u2044\u2215\u2216\u29f8\u3002\ufe52\uff0e\uff0f\uff3c\uff61"

// decodePath undoes the escapes of a path once. It refuses what servers disagree about: escapes of escapes, backslashes,
// control bytes, doubled slashes, and segments that are dots, with blanks or parameters (/..;x/) or without.
// Sources: RFC 3986, 3.3 and 5.2.4; CVE-2021-41773 for doubled escapes, CVE-2020-5902 for /..;/.
func decodePath(unsafePath string) (string, bool) {
	b := make([]byte, 0, len(unsafePath))
	for i := 0; i < len(unsafePath); i++ {
		c := unsafePath[i]
		if c == '%' {
			if i+2 >= len(unsafePath) || !isHex(unsafePath[i+1]) || !isHex(unsafePath[i+2]) {
				return "", false
			}
			if c = unhex(unsafePath[i+1])<<4 | unhex(unsafePath[i+2]); c == '%' {
				return "", false
			}
			i += 2
		}
		if c < ' ' || c == 0x7f || c == '\\' {
			return "", false
		}
		b = append(b, c)
	}
	decoded := string(b)
	if decoded == "" || decoded[0] != '/' || !utf8.ValidString(decoded) || strings.ContainsAny(decoded, lookalikes) {
		return "", false
	}
	for rest := decoded[1:]; rest != ""; {
		var segment string
		segment, rest, _ = strings.Cut(rest, "/")
		if name, _, _ := strings.Cut(segment, ";"); strings.Trim(name, ". ") == "" {
			return "", false
		}
	}
	return decoded, true
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c >= 'a':
		return c - 'a' + 10
	case c >= 'A':
		return c - 'A' + 10
	}
	return c - '0'
}
