package gateway

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// In inspected TLS the destination gets the secret in place of the placeholder, where it wants it, and nobody else does.
func TestInsert(t *testing.T) {
	const ph, secret = "agentsafe-placeholder-0123456789abcdef", "s3cr3t of/the host"
	basic := func(user, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(user, password) }
	}
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for _, tc := range []struct {
		name, present, secret, url string
		change                     func(*http.Request)
		seen                       string
	}{
		{"bearer", "bearer", secret, "https://api.test/x", header("Authorization", "Bearer "+ph), "GET api.test /x Bearer " + secret + "|"},
		{"bearer, of another scheme", "bearer", secret, "https://api.test/x", header("Authorization", "token "+ph), "GET api.test /x token " + secret + "|"},
		{"bearer, as a password", "bearer", "tok", "https://api.test/x", basic("x", ph), "GET api.test /x Basic eDp0b2s=|"},
		{"basic", "basic", "robot:word", "https://api.test/x", basic("anybody", ph), "GET api.test /x Basic cm9ib3Q6d29yZA==|"},
		{"header", "header:x-api-key", secret, "https://api.test/x", header("X-API-Key", ph), "GET api.test /x |" + secret},
		{"query", "query:key", secret, "https://api.test/x?a=1;2&key=" + ph + "&b=%20", nil, "GET api.test /x?a=1;2&key=s3cr3t+of%2Fthe+host&b=%20 |"},
		{"no placeholder", "bearer", secret, "https://api.test/x", header("Authorization", "Bearer mine"), "GET api.test /x Bearer mine|"},
		{"in another header", "header:x-api-key", secret, "https://api.test/x", header("Authorization", ph), "GET api.test /x " + ph + "|"},
		{"in another parameter", "query:key", secret, "https://api.test/x?q=" + ph, nil, "GET api.test /x?q=" + ph + " |"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := newInspector(t, []wire.Credential{{Name: "model", Host: "api.test", Port: 443, Present: tc.present, Secret: tc.secret, Placeholder: ph, Inspect: true}},
				"api.test", "GET https://other.test/")
			for _, http2 := range []bool{false, true} {
				got := do(t, in.client(t, "api.test", http2), "GET", tc.url, tc.change)
				if !strings.Contains(got, "200 OK") || !strings.HasSuffix(in.requests(), tc.seen) {
					t.Errorf("seen %q, want %q\n%s", in.requests(), tc.seen, got)
				}
				// What the answer's headers repeat is taken out.
				if strings.Contains(got, tc.secret) || strings.Contains(got, "s3cr3t+of%2Fthe+host") || strings.Contains(got, "cm9ib3Q6d29yZA==") {
					t.Errorf("the secret comes back:\n%s", got)
				}
				before := in.requests()
				got = do(t, in.client(t, "other.test", http2), "GET", strings.Replace(tc.url, "api.test", "other.test", 1), tc.change)
				if strings.Contains(tc.url, ph) || tc.change != nil && tc.name != "no placeholder" {
					if !regexp.MustCompile(`403 Forbidden(.|\n)*the placeholder of the credential model was sent to another host`).MatchString(got) || in.requests() != before {
						t.Errorf("to another host:\n%s", got)
					}
				}
			}
			data, err := os.ReadFile(in.out)
			if err != nil || strings.Contains(string(data), tc.secret) || tc.name == "bearer" && !strings.Contains(string(data), `"event":"credential","decision":"allow","name":"api.test","port":443,"protocol":"tls","rule":"credential model","method":"GET","path":"/x"`) {
				t.Errorf("%v\n%s", err, data)
			}
		})
	}
}

// A credential that the pod's other containers do not have is not for this network, and TRACE never sees one.
func TestAttack_Insert(t *testing.T) {
	const ph = "agentsafe-placeholder-0123456789abcdef"
	in := newInspector(t, []wire.Credential{{Name: "model", Host: "api.test", Port: 443, Present: "bearer", Secret: "s3cr3t-of-the-host", Placeholder: ph, Inspect: true}}, "api.test")
	authorize := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+ph) }
	if got := do(t, in.client(t, "api.test", false), "TRACE", "https://api.test/x", authorize); !strings.Contains(got, "403 Forbidden") || in.requests() != "" {
		t.Errorf("TRACE: %s", got)
	}
	if err := in.g.apply(wire.Request{Op: "join", Member: &wire.Member{Container: "b", Policy: egress.Config{Allow: []string{"api.test"}}}}); err != nil {
		t.Fatal(err)
	}
	if got := do(t, in.client(t, "api.test", false), "GET", "https://api.test/x", authorize); !strings.Contains(got, "403 Forbidden") || in.requests() != "" {
		t.Errorf("in a pod: %s", got)
	}
}
