package inspect

import (
	"bufio"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/netns/egress"
)

func policy(t testing.TB, rules ...string) Judge {
	t.Helper()
	p, err := egress.Compile(egress.Config{Allow: rules})
	if err != nil {
		t.Fatal(err)
	}
	return func(method, path string) egress.Decision { return p.Request("api.test", 443, egress.TLS, method, path) }
}

// head parses a request as the gateway's server does.
func head(text string) (*http.Request, error) {
	return http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
}

func TestCheck(t *testing.T) {
	narrow := policy(t, "GET,HEAD https://api.test/v1")
	for _, tc := range []struct {
		name, request string
		allowed       bool
	}{
		{"allowed", "GET /v1/x?a=../b HTTP/1.1\r\n\r\n", true},
		{"absolute form", "GET https://api.test/v1/x HTTP/1.1\r\n\r\n", true},
		{"another method", "POST /v1/x HTTP/1.1\r\n\r\n", false},
		{"another path", "GET /v2 HTTP/1.1\r\n\r\n", false},
		{"dots", "GET /v1/../v2 HTTP/1.1\r\n\r\n", false},
		{"escaped dots", "GET /v1/%2e%2e/v2 HTTP/1.1\r\n\r\n", false},
		{"escaped slash", "GET /v1%2f..%2fv2 HTTP/1.1\r\n\r\n", false},
		{"parameters", "GET /v1/..;/v2 HTTP/1.1\r\n\r\n", false},
		{"two slashes", "GET //v1/x HTTP/1.1\r\n\r\n", false},
		{"a fragment", "GET /v1#/../../v2 HTTP/1.1\r\n\r\n", false},
		{"opaque", "GET https:v1/x HTTP/1.1\r\n\r\n", false},
		{"asterisk", "OPTIONS * HTTP/1.1\r\n\r\n", false},
		{"asterisk of another method", "GET * HTTP/1.1\r\n\r\n", false},
		{"CONNECT", "CONNECT other.test:443 HTTP/1.1\r\n\r\n", false},
		{"overridden method", "GET /v1 HTTP/1.1\r\nX-HTTP-Method-Override: DELETE\r\n\r\n", false},
		{"overridden by a second value", "GET /v1 HTTP/1.1\r\nX-HTTP-Method: GET\r\nX-HTTP-Method: put\r\n\r\n", false},
		{"overridden method that is allowed", "GET /v1 HTTP/1.1\r\nX-Method-Override: head\r\n\r\n", true},
		{"overridden path", "GET /v1 HTTP/1.1\r\nX-Original-URL: /admin\r\n\r\n", false},
		{"overridden path as URL", "GET /v1 HTTP/1.1\r\nX-Rewrite-URL: https://api.test/admin\r\n\r\n", false},
		{"overridden path that is allowed", "GET /v1 HTTP/1.1\r\nX-Original-URL: /v1/y\r\n\r\n", true},
		{"overridden path that is none", "GET /v1 HTTP/1.1\r\nX-Original-URL: ../admin\r\n\r\n", false},
	} {
		r, err := head(tc.request)
		if err != nil {
			if tc.allowed {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		}
		if d := Check(r, narrow); d.Allowed != tc.allowed || !d.Allowed && d.Reason == "" {
			t.Errorf("%s: %+v", tc.name, d)
		}
	}
	// A rule for a method lets every path pass, and nothing that is none.
	for _, text := range []string{"GET https:v1/x HTTP/1.1\r\n\r\n", "GET * HTTP/1.1\r\n\r\n"} {
		r, err := head(text)
		if err != nil {
			t.Fatal(err)
		}
		if d := Check(r, policy(t, "GET https://api.test")); d.Allowed {
			t.Errorf("%q is allowed", text)
		}
	}
	// Nothing of that is held against a rule that lets every request pass.
	for _, text := range []string{"DELETE /a/../b HTTP/1.1\r\nX-Original-URL: ../c\r\nX-HTTP-Method-Override: PUT\r\n\r\n", "OPTIONS * HTTP/1.1\r\n\r\n"} {
		r, err := head(text)
		if err != nil {
			t.Fatal(err)
		}
		if d := Check(r, policy(t, "api.test")); !d.Allowed {
			t.Errorf("%q: %+v", text, d)
		}
	}
}

func TestOutward(t *testing.T) {
	for in, want := range map[string]string{"websocket": "websocket", "WebSocket": "WebSocket", "h2c": "", "websocket, h2c": "", "TLS/1.0": ""} {
		h := http.Header{"Upgrade": {in}, "Connection": {"Upgrade, HTTP2-Settings"}, "Http2-Settings": {"AAMAAABkAARAAAAAAAIAAAAA"}}
		if Outward(h); h.Get("Upgrade") != want || h.Get("HTTP2-Settings") != "" {
			t.Errorf("%s: %v", in, h)
		}
	}
	h := http.Header{"Upgrade": {"websocket", "h2c"}}
	if Outward(h); h.Get("Upgrade") != "" {
		t.Errorf("%v", h)
	}
}

func TestLogPath(t *testing.T) {
	for in, want := range map[string]string{
		"/a%2fb": "/a%2fb", "/a?key=secret": "/a?...", "/a?": "/a?...", "/" + strings.Repeat("x", 600): "/" + strings.Repeat("x", maxLoggedPath-1) + "...",
	} {
		u, err := url.ParseRequestURI(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := LogPath(u); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

// FuzzCheck: whatever bytes a client sends, a request that is allowed asks for an allowed method, for a path below the
// prefix, and says nothing else in another place.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{
		"GET /v1/x HTTP/1.1\r\nHost: api.test\r\n\r\n", "GET /v1/..;/ HTTP/1.1\r\nX-HTTP-Method: PUT\r\n\r\n", "GET https:x HTTP/1.1\r\n\r\n",
		"GET /v1 HTTP/1.1\r\nX-Original-URL: /v1/%2e\r\nUpgrade: h2c\r\n\r\n", "HEAD //v1 HTTP/1.0\r\n\r\n", "GET http://u:p@api.test/v1 HTTP/1.1\r\n\r\n",
	} {
		f.Add(s)
	}
	judge := policy(f, "GET,HEAD https://api.test/v1")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := head(text)
		if err != nil {
			return
		}
		if d := Check(r, judge); !d.Allowed {
			return
		}
		path := r.URL.EscapedPath()
		if r.Method != http.MethodGet && r.Method != http.MethodHead || path != "/v1" && !strings.HasPrefix(path, "/v1/") || r.URL.Opaque != "" {
			t.Errorf("%q is allowed: %s %s", text, r.Method, path)
		}
		for _, h := range methodHeaders() {
			for _, v := range r.Header.Values(h) {
				if v = strings.ToUpper(strings.TrimSpace(v)); v != http.MethodGet && v != http.MethodHead {
					t.Errorf("%q is allowed with the method %q", text, v)
				}
			}
		}
		Outward(r.Header)
		if v := r.Header.Get("Upgrade"); v != "" && !strings.EqualFold(strings.TrimSpace(v), "websocket") {
			t.Errorf("%q asks for %q", text, v)
		}
		if strings.ContainsAny(r.URL.RequestURI(), " \r\n") {
			t.Errorf("%q is written as %q", text, r.URL.RequestURI())
		}
	})
}
