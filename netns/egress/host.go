package egress

import (
	"fmt"
	"strings"
)

// maxHostBytes is the longest name that DNS can carry. Source: RFC 1035, 2.3.4.
const maxHostBytes = 253

// ParseHost returns the canonical form of a host name: lower case, without a trailing dot. It refuses what isn't a name
// of letters, digits, hyphens and underscores, and names that a lenient parser reads as an address.
// Source: RFC 1123, 2.1; RFC 8552 for underscores; WHATWG URL, "ends in a number".
func ParseHost(unsafeHost string) (string, error) {
	host := strings.TrimSuffix(unsafeHost, ".")
	if host == "" || len(host) > maxHostBytes {
		return "", fmt.Errorf("host %q: want 1 to %d bytes", clip(unsafeHost), maxHostBytes)
	}
	labelStart := 0
	for i := 0; i <= len(host); i++ {
		if i < len(host) && host[i] != '.' {
			if !hostByte(host[i]) {
				return "", fmt.Errorf("host %q: byte %q is not a letter, digit, hyphen or underscore", clip(unsafeHost), host[i])
			}
			continue
		}
		label := host[labelStart:i]
		switch {
		case label == "" || len(label) > 63:
			return "", fmt.Errorf("host %q: labels have 1 to 63 bytes", clip(unsafeHost))
		case label[0] == '-' || label[len(label)-1] == '-':
			return "", fmt.Errorf("host %q: a label begins or ends with a hyphen", clip(unsafeHost))
		case i == len(host) && isNumber(label):
			return "", fmt.Errorf("host %q: ends in a number, so it is an address or a disguise of one", clip(unsafeHost))
		}
		labelStart = i + 1
	}
	return strings.ToLower(host), nil
}

func hostByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

// isNumber recognises decimal, octal and hexadecimal numbers as inet_aton does.
func isNumber(label string) bool {
	if len(label) > 1 && label[0] == '0' && (label[1] == 'x' || label[1] == 'X') {
		return strings.Trim(label[2:], "0123456789abcdefABCDEF") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// clip keeps hostile text out of error messages but for its beginning.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
