package egress

import (
	"net/url"
	"path"
	"strings"
	"testing"
)

// What is below a prefix is so for every reader of the path.
func TestBelowPath(t *testing.T) {
	for unsafePath, want := range map[string]bool{
		"/pool": true, "/pool/": true, "/pool/x": true, "/pool/a%20b": true, "/pool/@scope%2fname": true, "/pool/x;v=1": true, "/pool/.well-known": true,
		"/pool/%E2%82%AC": true, "/pool/a..b": true,
		"": false, "pool": false, "/poolside": false, "/pool%2fx": false, "/%70ool/x": false, "/pool/../x": false, "/pool/..": false, "/pool/./x": false,
		"/pool//x": false, "//pool/x": false, "/pool/%2e%2e/x": false, "/pool/.%2e/x": false, "/pool/..%2fx": false, "/pool/%252e%252e/x": false,
		"/pool/..;/x": false, "/pool/..;a=b/x": false, "/pool/;/x": false, "/pool/;x": false, "/pool/..\\x": false, "/pool/..%5cx": false, "/pool/%00": false,
		"/pool/%": false, "/pool/%2": false, "/pool/%zz": false, "/pool/%u002e": false, "/pool/%c0%ae": false, "/pool/.. /x": false, "/pool/...": false,
		"/pool/%ef%bc%8e%ef%bc%8e/x": false, "/pool/\r\n": false, "/pool/%0d%0a": false, "/Pool/x": false,
	} {
		if belowPath(unsafePath, "/pool") != want {
			t.Errorf("%q: want %v", unsafePath, want)
		}
	}
}

// A rule for requests inside of TLS has TLS inspected, unless another one lets all of it pass.
func TestInspect(t *testing.T) {
	p := compile(t, Config{Allow: []string{"GET,HEAD https://api.test/v1", "POST https://api.test/v1/jobs", "GET https://open.test", "open.test:443", "https://*.wild.test:443,8443/pub", "plain.test"}})
	if !p.Inspects() || compile(t, Config{Allow: []string{"a.test", "GET http://b.test", "https://c.test/"}}).Inspects() {
		t.Error("it is wrong which policies inspect")
	}
	for _, tc := range []struct {
		host             string
		port             uint16
		proto            Protocol
		allowed, inspect bool
	}{
		{"api.test", 443, TLS, true, true},
		{"api.test", 443, HTTP, false, false},
		{"api.test", 443, Raw, false, false},
		{"api.test", 8443, TLS, false, false},
		{"open.test", 443, TLS, true, false},
		{"a.wild.test", 8443, TLS, true, true},
		{"plain.test", 443, TLS, true, false},
	} {
		if d := p.Connect(tc.host, tc.port, tc.proto); d.Allowed != tc.allowed || d.Inspect != tc.inspect {
			t.Errorf("%+v: %+v", tc, d)
		}
	}
	for _, tc := range []struct {
		host, method, path string
		allowed            bool
	}{
		{"api.test", "GET", "/v1/x", true},
		{"api.test", "POST", "/v1/x", false},
		{"api.test", "POST", "/v1/jobs/7", true},
		{"api.test", "get", "/v1/x", false},
		{"api.test", "GET", "/v2", false},
		{"api.test", "GET", "/v1/../v2", false},
		{"open.test", "DELETE", "/x", true},
		{"plain.test", "DELETE", "/x", true},
	} {
		if d := p.Request(tc.host, 443, TLS, tc.method, tc.path); d.Allowed != tc.allowed {
			t.Errorf("%+v: %+v", tc, d)
		}
	}
	// In a pod everybody has to allow it.
	both := p.And(compile(t, Config{Allow: []string{"open.test", "api.test", "GET https://plain.test/x"}}))
	for host, inspect := range map[string]bool{"open.test": false, "api.test": true, "plain.test": true} {
		if d := both.Connect(host, 443, TLS); !d.Allowed || d.Inspect != inspect {
			t.Errorf("%s: %+v", host, d)
		}
	}
	if both.Request("api.test", 443, TLS, "DELETE", "/v1").Allowed || both.Request("plain.test", 443, TLS, "GET", "/").Allowed || !both.Request("plain.test", 443, TLS, "GET", "/x").Allowed {
		t.Error("a request that one of them refuses")
	}
}

func TestMeet_Inspected(t *testing.T) {
	for pair, want := range map[[2]string]string{
		{"a.test", "GET https://a.test/x"}:                          "GET https://a.test:443/x",
		{"GET,POST https://*.test/x", "GET,PUT https://a.test/x/y"}: "GET https://a.test:443/x/y",
		{"tcp://*:1-65535", "https://a.test/x"}:                     "https://a.test:443/x",
		{"GET http://a.test:443", "https://a.test/x"}:               "",
		{"GET https://a.test", "POST https://a.test"}:               "",
	} {
		a, err := ParseRule(pair[0])
		b, berr := ParseRule(pair[1])
		if r, _ := a.Meet(b); err != nil || berr != nil || r.String() != want {
			t.Errorf("%v meet at %q, want %q (%v, %v)", pair, r, want, err, berr)
		}
	}
	ceiling := compile(t, Config{Allow: []string{"GET https://a.test/x", "b.test:443"}})
	for text, want := range map[string]bool{"GET https://a.test/x/y": true, "GET https://a.test": false, "https://a.test/x": false, "a.test:443": false, "PUT https://b.test/y": true} {
		if r, err := ParseRule(text); err != nil || ceiling.Covers(r) != want {
			t.Errorf("covers %s: %v, %v", text, !want, err)
		}
	}
}

// Whatever a server makes of the path, by one decoding or none, is below the prefix.
func FuzzBelowPath(f *testing.F) {
	for _, s := range []string{"/pool/x", "/pool/..%2fx", "/pool/..;/x", "/pool/%2e/x", "/pool//", "/pool/@a%2fb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, unsafePath string) {
		if !belowPath(unsafePath, "/pool") {
			return
		}
		decoded, err := url.PathUnescape(unsafePath)
		if err != nil {
			t.Fatalf("%q: %v", unsafePath, err)
		}
		for _, reading := range []string{unsafePath, decoded, strings.ReplaceAll(decoded, "\\", "/"), path.Clean(unsafePath), path.Clean(decoded)} {
			if clean := path.Clean(reading); clean != "/pool" && !strings.HasPrefix(clean, "/pool/") {
				t.Errorf("%q is read as %q", unsafePath, clean)
			}
		}
	})
}
