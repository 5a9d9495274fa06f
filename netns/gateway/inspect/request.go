package inspect

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// Judge decides on a method and an escaped path.
type Judge func(method, path string) egress.Decision

// methodHeaders and targetHeaders are read by web frameworks in place of the request line. Sources: X-HTTP-Method-Override
// is Google's, X-Method-Override IBM's, X-HTTP-Method Microsoft's; X-Original-URL and X-Rewrite-URL are IIS's, and were
// believed by Symfony (CVE-2018-14773).
func methodHeaders() []string {
	return []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}
}

func targetHeaders() []string { return []string{"X-Original-Url", "X-Rewrite-Url"} }

// Check decides on a request whose host has been compared with its connection's. A request that asks to be taken for
// another one has to be allowed as that as well.
func Check(r *http.Request, judge Judge) egress.Decision {
	if r.Method == http.MethodConnect {
		return egress.Decision{Code: egress.WrongProtocol, Reason: "CONNECT to a host that is no proxy of this container; proxy.agentsafe.internal is one"}
	}
	path := r.URL.EscapedPath()
	asterisk := r.Method == http.MethodOptions && path == "*" // RFC 9110, 9.3.7
	if !strings.HasPrefix(path, "/") && !asterisk {           // as of one that net/url calls opaque
		return egress.Decision{Code: egress.BadName, Reason: "the target of the request is not a path"}
	}
	d := judge(r.Method, path)
	for _, h := range methodHeaders() {
		for _, method := range r.Header.Values(h) {
			if d.Allowed {
				d = instead(h, judge(strings.ToUpper(strings.TrimSpace(method)), path))
			}
		}
	}
	for _, h := range targetHeaders() {
		for _, target := range r.Header.Values(h) {
			if !d.Allowed {
				break
			}
			other := "?" // no path, so it is below none
			if u, err := url.Parse(target); err == nil && u.Opaque == "" {
				other = u.EscapedPath()
			}
			d = instead(h, judge(r.Method, other))
		}
	}
	return d
}

func instead(header string, d egress.Decision) egress.Decision {
	if !d.Allowed {
		d.Reason = fmt.Sprintf("as the header %s wants it: %s", header, d.Reason)
	}
	return d
}

// Outward takes out of a request's headers what asks the next server to speak something else than HTTP: behind it nothing
// would be judged any more (h2c smuggling). WebSocket stays, whose messages are one conversation with the resource that
// was allowed.
func Outward(h http.Header) {
	for _, v := range h.Values("Upgrade") {
		if !strings.EqualFold(strings.TrimSpace(v), "websocket") {
			h.Del("Upgrade")
			break
		}
	}
	h.Del("Http2-Settings")
}

// maxLoggedPath bounds what a log line has of a path.
const maxLoggedPath = 512

// LogPath is the path of a request for a log: without the query, which may hold secrets, but for the fact that there is one.
func LogPath(u *url.URL) string {
	path := u.EscapedPath()
	if len(path) > maxLoggedPath {
		path = path[:maxLoggedPath] + "..."
	}
	if u.RawQuery != "" || u.ForceQuery {
		path += "?..."
	}
	return path
}
