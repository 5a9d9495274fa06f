package audit

import (
	"fmt"
	"strings"
)

// Redact returns a command line in which what looks like a secret is replaced by its length. The rules: the value of
// an assignment or a flag whose name sounds like a secret, what follows such a flag or an Authorization header, the
// password of a URL, and words that begin as known tokens do. They err on the side of hiding.
func Redact(args []string) []string {
	out := make([]string, len(args))
	hideNext := false
	for i, a := range args {
		switch {
		case hideNext && !strings.HasPrefix(a, "-"):
			out[i], hideNext = hidden(a), false
		default:
			out[i] = redactWord(a)
			hideNext = strings.HasPrefix(a, "-") && !strings.Contains(a, "=") && secretName(strings.TrimLeft(a, "-"))
		}
	}
	return out
}

func hidden(s string) string {
	if s == "" {
		return s
	}
	return fmt.Sprintf("[redacted %d bytes]", len(s))
}

// redactWord works on one argument, which may be a whole script: it is looked at word by word.
func redactWord(a string) string {
	var b strings.Builder
	auth := false
	for len(a) > 0 {
		end := strings.IndexAny(a, " \t\n'\";|&(),")
		if end < 0 {
			end = len(a)
		}
		word := a[:end]
		switch {
		case auth && word != "" && !isScheme(word):
			b.WriteString(hidden(word))
			auth = false
		default:
			b.WriteString(redactToken(word))
			auth = auth && (word == "" || isScheme(word)) || strings.EqualFold(word, "authorization:") || strings.EqualFold(word, "bearer")
		}
		if end < len(a) {
			b.WriteByte(a[end])
			end++
		}
		a = a[end:]
	}
	return b.String()
}

func isScheme(word string) bool {
	return strings.EqualFold(word, "bearer") || strings.EqualFold(word, "basic") || strings.EqualFold(word, "token")
}

func redactToken(word string) string {
	if name, value, ok := strings.Cut(word, "="); ok && secretName(strings.TrimLeft(name, "-")) {
		return name + "=" + hidden(value)
	}
	if scheme, rest, ok := strings.Cut(word, "://"); ok {
		if user, host, ok := strings.Cut(rest, "@"); ok && !strings.Contains(user, "/") {
			if name, password, ok := strings.Cut(user, ":"); ok {
				return scheme + "://" + name + ":" + hidden(password) + "@" + host
			}
			return scheme + "://" + hidden(user) + "@" + host
		}
	}
	value := word
	if _, v, ok := strings.Cut(word, "="); ok {
		value = v
	}
	for _, prefix := range [...]string{
		"ghp_", "gho_", "ghs_", "ghu_", "github_pat_", "glpat-", "sk-", "sk_live_", "rk_live_", "xoxb-", "xoxp-", "xoxa-",
		"AKIA", "ASIA", "AIza", "ya29.", "npm_", "pypi-", "eyJ", "hf_", "dop_v1_", "shpat_", "-----BEGIN",
	} {
		const minToken = 16
		if strings.HasPrefix(value, prefix) && len(value) >= minToken {
			return word[:len(word)-len(value)] + hidden(value)
		}
	}
	return word
}

// secretName reports whether a flag's or a variable's name sounds like a secret.
func secretName(name string) bool {
	name = strings.ToLower(name)
	for _, part := range [...]string{"token", "secret", "password", "passwd", "apikey", "api-key", "api_key", "credential", "private-key", "private_key", "access-key", "access_key"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return name == "pw" || name == "pass" || name == "auth"
}
