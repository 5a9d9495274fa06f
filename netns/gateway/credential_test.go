package gateway

import (
	"net/http"
	"testing"
)

// A redirection to the destination stays on the way that has the secret; one to another host must not get on it.
func TestKeepHere(t *testing.T) {
	for location, want := range map[string]string{
		"https://api.test/v2?x=1":       "http://model.agentsafe.internal/v2?x=1",
		"https://api.test:443/v2":       "http://model.agentsafe.internal/v2",
		"https://other.test/v2":         "https://other.test/v2",
		"https://api.test:8443/v2":      "https://api.test:8443/v2",
		"https://api.test.other.test/":  "https://api.test.other.test/",
		"https://user@other.test/":      "https://user@other.test/",
		"http://api.test/v2":            "http://api.test/v2",
		"/v2":                           "/v2",
		"https://api.test\x7f/":         "https://api.test\x7f/",
		"":                              "",
		"//api.test/v2":                 "//api.test/v2",
		"https://api.test@other.test/x": "https://api.test@other.test/x",
	} {
		r := &http.Response{Header: http.Header{}}
		if location != "" {
			r.Header.Set("Location", location)
		}
		if err := keepHere(r, "api.test", "model.agentsafe.internal"); err != nil || r.Header.Get("Location") != want {
			t.Errorf("%q: %q, %v, want %q", location, r.Header.Get("Location"), err, want)
		}
	}
}
