package gateway

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// carried are the credentials that are put into inspected requests to a destination.
func (g *Gateway) carried(host string, port uint16) []*wire.Credential {
	var out []*wire.Credential
	for i := range g.config.Credentials {
		if c := &g.config.Credentials[i]; c.Inspect && c.Port == port && strings.EqualFold(c.Host, host) {
			out = append(out, c)
		}
	}
	return out
}

// insert puts secrets in place of their placeholders, where the destination wants them and nowhere else. It returns which
// credential a request has used, "" for none.
func (w *web) insert(r *http.Request, credentials []*wire.Credential) (used string) {
	for _, c := range credentials {
		for _, p := range w.g.shared.Load().placeholders {
			if p.label == c.Name && insertSecret(r, c, p.text) {
				used = "credential " + c.Name
			}
		}
	}
	return used
}

func insertSecret(r *http.Request, c *wire.Credential, text string) bool {
	switch kind, name, _ := strings.Cut(c.Present, ":"); kind {
	case "header":
		return insertHeader(r.Header[http.CanonicalHeaderKey(name)], text, c.Secret)
	case "query":
		return insertQuery(r.URL, name, text, c.Secret)
	case "bearer":
		return insertHeader(r.Header["Authorization"], text, c.Secret)
	case "basic":
		for i, v := range r.Header["Authorization"] {
			if strings.Contains(v, text) || strings.Contains(decodeBasic(v), text) {
				r.Header["Authorization"][i] = "Basic " + base64.StdEncoding.EncodeToString([]byte(c.Secret))
				return true
			}
		}
	}
	return false
}

// insertHeader knows passwords of basic authentication as well: clients of a token's owner differ in how they show it.
func insertHeader(values []string, text, secret string) (found bool) {
	for i, v := range values {
		switch basic := decodeBasic(v); {
		case strings.Contains(v, text):
			values[i] = strings.ReplaceAll(v, text, secret)
		case strings.Contains(basic, text):
			values[i] = "Basic " + base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(basic, text, secret)))
		default:
			continue
		}
		found = true
	}
	return found
}

// insertQuery leaves the rest of the query as it was written.
func insertQuery(u *url.URL, name, text, secret string) (found bool) {
	parts := strings.Split(u.RawQuery, "&")
	for i, part := range parts {
		key, value, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(key); err == nil && plain == name && value == text {
			parts[i] = key + "=" + url.QueryEscape(secret)
			found = true
		}
	}
	if found {
		u.RawQuery = strings.Join(parts, "&")
	}
	return found
}

// shortestConcealed: a shorter secret is part of too much else.
const shortestConcealed = 8

// conceal takes a secret out of the headers of an answer: a redirection that repeats the query, a cookie. Bodies are not
// looked at.
func conceal(h http.Header, c *wire.Credential) {
	if len(c.Secret) < shortestConcealed {
		return
	}
	forms := []string{c.Secret, url.QueryEscape(c.Secret), base64.StdEncoding.EncodeToString([]byte(c.Secret))}
	for _, values := range h {
		for i := range values {
			for _, form := range forms {
				values[i] = strings.ReplaceAll(values[i], form, c.Placeholder)
			}
		}
	}
}
