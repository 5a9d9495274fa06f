package network

import (
	"regexp"
	"strings"
	"testing"
)

// TestAttack_Smuggling: what two parsers of HTTP may read differently leaves as one of them at most, which was judged: of a
// rule for two methods and a path, nothing else reaches the server, whatever is inside of requests, around or behind them.
func TestAttack_Smuggling(t *testing.T) {
	const post = "POST /pool HTTP/1.1\r\nHost: example.com\r\n"
	inner := "DELETE /secret HTTP/1.1\r\nHost: other.test\r\nX: "
	within := func(head string) string { return post + head + "\r\n\r\n0\r\n\r\n" + inner + "\r\n\r\n" }
	sends := map[string]string{
		"both lengths":               within("Content-Length: 4\r\nTransfer-Encoding: chunked"),
		"both lengths, the other":    within("Transfer-Encoding: chunked\r\nContent-Length: 200"),
		"two lengths":                within("Content-Length: 5\r\nContent-Length: 200"),
		"a list of lengths":          within("Content-Length: 5, 200"),
		"a length with a sign":       within("Content-Length: +5"),
		"a length in hex":            within("Content-Length: 0x5"),
		"an unknown coding":          within("Transfer-Encoding: xchunked"),
		"two codings":                within("Transfer-Encoding: chunked, identity"),
		"two lines of codings":       within("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked"),
		"a blank before the colon":   within("Transfer-Encoding : chunked"),
		"a folded line":              within("Transfer-Encoding:\r\n chunked"),
		"a vertical tab":             within("Transfer-Encoding:\x0bchunked"),
		"bare line feeds":            strings.ReplaceAll(within("Transfer-Encoding: chunked"), "\r\n", "\n"),
		"a bare carriage return":     within("X: y\rTransfer-Encoding: chunked"),
		"a zero byte":                within("X: \x00\r\nTransfer-Encoding: chunked"),
		"an extension of a chunk":    post + "Transfer-Encoding: chunked\r\n\r\n0;a=\"\n\r\n\r\n" + inner + "\r\n\r\n",
		"a trailer":                  post + "Transfer-Encoding: chunked\r\nTrailer: Host\r\n\r\n0\r\nHost: other.test\r\n\r\n" + inner + "\r\n\r\n",
		"a huge chunk":               post + "Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\nabcde\r\n0\r\n\r\n" + inner + "\r\n\r\n",
		"behind the body":            post + "Content-Length: 0\r\n\r\n" + inner + "\r\n\r\n",
		"HTTP/1.0 that is kept":      "GET /pool HTTP/1.0\r\nHost: example.com\r\nConnection: keep-alive\r\n\r\n" + inner + "\r\n\r\n",
		"HTTP/0.9":                   "GET /secret\r\n\r\n",
		"HTTP/2 from the beginning":  "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"an upgrade to HTTP/2":       "GET /pool HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n" + inner + "\r\n\r\n",
		"two upgrades":               "GET /pool HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n" + inner + "\r\n\r\n",
		"a user in the target":       "GET http://example.com@other.test/pool HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"a target without slashes":   "GET http:other.test/pool HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"a target of two slashes":    "GET //other.test/pool HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"an asterisk":                "OPTIONS * HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"a method in small letters":  "delete /pool HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"a blank line first":         "\r\nDELETE /secret HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"two hosts":                  "GET /pool HTTP/1.1\r\nHost: example.com\r\nHost: other.test\r\n\r\n",
		"a host with a tab":          "GET /pool HTTP/1.1\r\nHost: example.com\tother.test\r\n\r\n",
		"a list of hosts":            "GET /pool HTTP/1.1\r\nHost: example.com, other.test\r\n\r\n",
		"a host with a path":         "GET /pool HTTP/1.1\r\nHost: example.com/@other.test\r\n\r\n",
		"no host":                    "GET /pool HTTP/1.1\r\n\r\n",
		"a host that is taken away":  "GET /pool HTTP/1.1\r\nHost: example.com\r\nConnection: Host, close\r\n\r\n",
		"another path in a header":   "GET /pool HTTP/1.1\r\nHost: example.com\r\nX-Original-URL: /secret\r\nConnection: X-Original-URL\r\n\r\n",
		"another method in a header": post + "X-HTTP-Method-Override: DELETE\r\nContent-Length: 0\r\n\r\n",
		"segments of dots":           "GET /pool/..%2fsecret HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"an overlong dot":            "GET /pool/%c0%ae%c0%ae/secret HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"a fragment":                 "GET /secret#/pool HTTP/1.1\r\nHost: example.com\r\n\r\n",
	}
	var list []attempt
	var names []string
	const last = "GET /pool/last HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n" // has the connection end
	for name, send := range sends {
		send += last
		list, names = append(list, attempt{Kind: "tcp", Host: "example.com", Port: 80, Send: send}), append(names, name)
	}
	before := len(outside.requests())
	results, _ := try(t, rules("GET,POST http://example.com/pool"), list)
	for i, r := range results {
		if regexp.MustCompile("world: .*(secret|other)").MatchString(r.text()) {
			t.Errorf("%s: %q", names[i], r.text())
		}
	}
	for _, r := range outside.requests()[before:] {
		if !regexp.MustCompile("^(GET|POST) example.com/pool(/last)? ").MatchString(r) {
			t.Errorf("it has left: %s", r)
		}
	}
}
