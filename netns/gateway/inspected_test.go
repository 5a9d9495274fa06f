package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/netns/egress"
	"github.com/agentsafe/agentsafe/netns/gateway/inspect"
	"github.com/agentsafe/agentsafe/netns/gateway/wire"
)

// testAuthority makes an authority, and the pool of those who trust it.
func testAuthority(t testing.TB) (*inspect.Authority, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "administrator's"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	a, err := inspect.ParseAuthority(certPEM, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return a, pool
}

// inspector is a gateway that looks into TLS, between a task and a server.
type inspector struct {
	g      *Gateway
	trust  *x509.CertPool // of the task
	server *httptest.Server
	out    string // the log's file

	mu   sync.Mutex
	seen []string // what the server was asked: METHOD host path?query, and the headers that carry secrets
}

func newInspector(t *testing.T, credentials []wire.Credential, allow ...string) *inspector {
	t.Helper()
	in := &inspector{out: filepath.Join(t.TempDir(), "log")}
	// The server's own authority is one that the host trusts.
	outside, hostTrust := testAuthority(t)
	in.server = httptest.NewUnstartedServer(http.HandlerFunc(in.answer))
	in.server.EnableHTTP2 = true
	in.server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	in.server.TLS = &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if name, ok := strings.CutPrefix(h.ServerName, "wrong."); ok {
			return outside.Certificate(name)
		}
		if strings.HasPrefix(h.ServerName, "forged.") {
			stranger, _ := testAuthority(t)
			return stranger.Certificate(h.ServerName)
		}
		return outside.Certificate(h.ServerName)
	}}
	in.server.StartTLS()
	t.Cleanup(in.server.Close)
	logFile, err := os.Create(in.out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { logFile.Close() })
	c := testConfig(allow...)
	c.Credentials = credentials
	var authority *inspect.Authority
	authority, in.trust = testAuthority(t)
	if in.g, err = New(c, logFile, Trust{Roots: hostTrust, Authority: authority}); err != nil {
		t.Fatal(err)
	}
	in.g.web.secure.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", in.server.Listener.Addr().String())
	}
	ctx, cancel := context.WithCancel(context.Background())
	go in.g.web.serve(ctx)
	t.Cleanup(func() {
		in.g.web.closeIdle()
		cancel()
	})
	return in
}

func (in *inspector) answer(rw http.ResponseWriter, r *http.Request) {
	in.mu.Lock()
	in.seen = append(in.seen, fmt.Sprintf("%s %s %s %s|%s", r.Method, r.Host, r.RequestURI, r.Header.Get("Authorization"), r.Header.Get("X-Api-Key")))
	in.mu.Unlock()
	if r.Header.Get("Upgrade") == "websocket" {
		c, b, err := http.NewResponseController(rw).Hijack()
		if err == nil {
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n") //nolint:errcheck // a test's client
			line, _ := b.ReadString('\n')
			io.WriteString(c, "echo "+line) //nolint:errcheck // likewise
			c.Close()
		}
		return
	}
	rw.Header().Set("X-Echo", r.Header.Get("X-Api-Key")+r.Header.Get("Authorization")+r.URL.RawQuery)
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(rw, "%s %s %s", r.Proto, r.URL.Path, body)
}

func (in *inspector) requests() string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return strings.Join(in.seen, "\n")
}

// dial is the task's connection to a name, with a hello that has been judged.
func (in *inspector) dial(t testing.TB, name, serverName string, protocols ...string) (*tls.Conn, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	task, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	here, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { task.Close(); here.Close() })
	s := &session{g: in.g, conn: here.(*net.TCPConn), begin: time.Now(), name: name, port: 443, proto: egress.TLS}
	if d := in.g.open(s); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	if !in.g.inspects(s) {
		return nil, errors.New("not inspected")
	}
	go in.g.inspect(s, nil)
	c := tls.Client(task, &tls.Config{RootCAs: in.trust, ServerName: serverName, NextProtos: protocols, MinVersion: tls.VersionTLS12})
	return c, c.HandshakeContext(t.Context())
}

func (in *inspector) client(t testing.TB, name string, http2 bool) *http.Client {
	t.Helper()
	protocols := []string{"http/1.1"}
	if http2 {
		protocols = []string{"h2", "http/1.1"}
	}
	transport := &http.Transport{ForceAttemptHTTP2: http2, DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
		return in.dial(t, name, name, protocols...)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// do makes a request and returns status, headers and body as text.
func do(t testing.TB, c *http.Client, method, url string, change func(*http.Request)) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	answer, err := c.Do(r)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, err := httputil.DumpResponse(answer, true)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Requests in TLS are judged one by one, by HTTP/1.1 and by HTTP/2, and go on over TLS.
func TestInspect(t *testing.T) {
	in := newInspector(t, nil, "GET,HEAD https://api.test/v1", "GET https://wrong.api.test/", "GET https://forged.api.test/", "open.test")
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", http2), func(t *testing.T) {
			c := in.client(t, "api.test", http2)
			version := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[http2]
			for _, tc := range []struct {
				name, method, url, want string
				change                  func(*http.Request)
			}{
				{"allowed", "GET", "https://api.test/v1/x?key=in-the-query", `^` + version + ` 200 OK(.|\n)*HTTP/2.0 /v1/x`, nil},
				{"another method", "POST", "https://api.test/v1/x", `403 Forbidden(.|\n)*"code":"no-rule".*does not cover this method or path`, nil},
				{"another path", "GET", "https://api.test/v2", `403 Forbidden`, nil},
				{"dots", "GET", "https://api.test/v1/../v2", `403 Forbidden`, nil},
				{"escaped dots", "GET", "https://api.test/v1/%2e%2e/v2", `403 Forbidden`, nil},
				{"parameters", "GET", "https://api.test/v1/..;/v2", `403 Forbidden`, nil},
				{"two slashes", "GET", "https://api.test//v1/x", `403 Forbidden`, nil},
				{"another host", "GET", "https://api.test/v1/x", `403 Forbidden(.|\n)*name-mismatch`, func(r *http.Request) { r.Host = "other.test" }},
				{"another allowed host", "GET", "https://api.test/v1/x", `403 Forbidden(.|\n)*name-mismatch`, func(r *http.Request) { r.Host = "open.test" }},
				{"another port", "GET", "https://api.test/v1/x", `403 Forbidden(.|\n)*name-mismatch`, func(r *http.Request) { r.Host = "api.test:8443" }},
				{"an overridden method", "GET", "https://api.test/v1/x", `403 Forbidden`, func(r *http.Request) { r.Header.Set("X-HTTP-Method-Override", "DELETE") }},
				{"allowed again", "HEAD", "https://api.test/v1/y", `^` + version + ` 200 OK`, nil},
			} {
				if got := do(t, c, tc.method, tc.url, tc.change); !regexp.MustCompile(tc.want).MatchString(got) {
					t.Errorf("%s: want %s\n%s", tc.name, tc.want, got)
				}
			}
		})
	}
	for line := range strings.SplitSeq(in.requests(), "\n") {
		if !regexp.MustCompile(`^(GET|HEAD) api.test /v1/[xy]`).MatchString(line) {
			t.Errorf("the server has seen %s", line)
		}
	}
	data, err := os.ReadFile(in.out)
	for _, want := range []string{
		`"event":"connect","decision":"allow","name":"api.test","port":443,"protocol":"tls","rule":"GET,HEAD https://api.test/v1","inspected":true`,
		`"event":"request","decision":"allow","name":"api.test","port":443,"protocol":"tls","rule":"GET,HEAD https://api.test/v1","method":"GET","path":"/v1/x\?...","inspected":true`,
		`"event":"request","decision":"refuse","name":"api.test".*"code":"no-rule".*"method":"POST","path":"/v1/x","inspected":true`,
	} {
		if err != nil || !regexp.MustCompile(want).Match(data) {
			t.Errorf("the log has no %s (%v):\n%s", want, err, data)
		}
	}
	if bytes.Contains(data, []byte("in-the-query")) {
		t.Error("the query is in the log")
	}
	// Who is behind the name is asked of the host's authorities, not taken from the task.
	if got := do(t, in.client(t, "wrong.api.test", false), "GET", "https://wrong.api.test/", nil); !regexp.MustCompile(`502 Bad Gateway(.|\n)*valid for api.test, not wrong.api.test`).MatchString(got) {
		t.Errorf("a server with another's certificate: %s", got)
	}
	if got := do(t, in.client(t, "forged.api.test", false), "GET", "https://forged.api.test/", nil); !regexp.MustCompile(`502 Bad Gateway(.|\n)*unknown authority`).MatchString(got) {
		t.Errorf("a server with a certificate of nobody's: %s", got)
	}
	// Nobody gets a certificate for what is not inspected, and none is good for another name.
	if _, err := in.dial(t, "open.test", "open.test"); err == nil || err.Error() != "not inspected" {
		t.Errorf("a name that is relayed: %v", err)
	}
	if _, err := in.dial(t, "api.test", "other.test"); err == nil || !strings.Contains(err.Error(), "not other.test") {
		t.Errorf("a certificate for another name: %v", err)
	}
}

// A client that trusts somebody else gets nothing, and the log says what it lacks.
func TestInspect_Distrusted(t *testing.T) {
	in := newInspector(t, nil, "GET https://api.test/")
	_, in.trust = testAuthority(t)
	if _, err := in.dial(t, "api.test", "api.test"); err == nil {
		t.Fatal("it is trusted")
	}
	var data []byte
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && !bytes.Contains(data, []byte("does not accept")); time.Sleep(5 * time.Millisecond) {
		data, _ = os.ReadFile(in.out)
	}
	if !regexp.MustCompile(`"decision":"refuse","name":"api.test".*does not accept the gateway's TLS`).Match(data) {
		t.Errorf("%s", data)
	}
}

// Whatever is written into one connection, the server sees requests that were judged, and no others.
func TestAttack_Smuggling(t *testing.T) {
	const get, evil = "GET /v1/x HTTP/1.1\r\nHost: api.test\r\n", "GET /secret HTTP/1.1\r\nHost: api.test\r\n\r\n"
	post := func(headers, body string) string {
		return "POST /v1/x HTTP/1.1\r\nHost: api.test\r\n" + headers + "\r\n" + body
	}
	for name, sent := range map[string]string{
		"CL and TE":                  post("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+evil),
		"TE and CL":                  post("Transfer-Encoding: chunked\r\nContent-Length: 100\r\n", "0\r\n\r\n"+evil),
		"two lengths":                post("Content-Length: 0\r\nContent-Length: 40\r\n", evil),
		"a length with a sign":       post("Content-Length: +0\r\n", evil),
		"TE with a vertical tab":     post("Transfer-Encoding: \vchunked\r\nContent-Length: 0\r\n", evil),
		"TE twice":                   post("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+evil),
		"TE behind a blank":          post("Transfer-Encoding : chunked\r\nContent-Length: 0\r\n", evil),
		"a folded header":            post("X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", evil),
		"a bare CR":                  post("X: a\rTransfer-Encoding: chunked\r\nContent-Length: 0\r\n", evil),
		"a bare LF":                  post("X: a\nContent-Length: 0\n", evil),
		"a zero byte":                post("X: a\x00b\r\nContent-Length: 0\r\n", evil),
		"a chunk that is too long":   post("Transfer-Encoding: chunked\r\n", "5\r\nabc\r\n0\r\n\r\n"+evil),
		"a chunk's size with a sign": post("Transfer-Encoding: chunked\r\n", "-1\r\n\r\n"+evil),
		"a chunk's extension":        post("Transfer-Encoding: chunked\r\n", "0;\r\nx=\r\n\r\n"+evil),
		"one behind the other":       get + "\r\n" + evil,
		"a body of GET":              get + "Content-Length: 43\r\n\r\n" + evil,
		"two hosts":                  get + "Host: other.test\r\n\r\n",
		"an absolute target":         "GET https://other.test/v1/x HTTP/1.1\r\nHost: api.test\r\n\r\n",
		"a target with a blank":      "GET /v1/x /secret HTTP/1.1\r\nHost: api.test\r\n\r\n",
		"h2c":                        get + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"the preface of HTTP/2":      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"CONNECT":                    "CONNECT api.test:443 HTTP/1.1\r\nHost: api.test\r\n\r\n" + evil,
	} {
		t.Run(name, func(t *testing.T) {
			in := newInspector(t, nil, "GET,POST https://api.test/v1")
			c, err := in.dial(t, "api.test", "api.test", "http/1.1")
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // Write says what is wrong
			io.WriteString(c, sent)                    //nolint:errcheck // the gateway may have had enough
			c.CloseWrite()                             //nolint:errcheck // likewise
			io.Copy(io.Discard, c)                     //nolint:errcheck // likewise
			for line := range strings.SplitSeq(in.requests(), "\n") {
				if line != "" && !regexp.MustCompile(`^(GET|POST) api.test /v1/x `).MatchString(line) {
					t.Errorf("the server has seen %s", line)
				}
			}
		})
	}
}

// A WebSocket passes with the request that asks for it; what follows is the server's business.
func TestInspect_WebSocket(t *testing.T) {
	in := newInspector(t, nil, "GET https://api.test/v1")
	for path, want := range map[string]string{"/v1/socket": "echo hello\n", "/v2/socket": ""} {
		c, err := in.dial(t, "api.test", "api.test", "http/1.1")
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(time.Minute))                                                                                                   //nolint:errcheck // ReadResponse says what is wrong
		io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n\r\n") //nolint:errcheck // likewise
		r := bufio.NewReader(c)
		answer, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want == "" {
			if answer.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %s", path, answer.Status)
			}
			continue
		}
		io.WriteString(c, "hello\n") //nolint:errcheck // likewise
		if line, err := r.ReadString('\n'); answer.StatusCode != http.StatusSwitchingProtocols || line != want {
			t.Errorf("%s: %s %q %v", path, answer.Status, line, err)
		}
	}
}

// Without an authority nothing that needs one is taken: not at the start, not while it runs, not from another container.
func TestInspect_FailsClosed(t *testing.T) {
	if _, err := New(testConfig("GET https://api.test/v1"), nil, Trust{}); err == nil || !strings.Contains(err.Error(), "inspectKey") {
		t.Errorf("rules: %v", err)
	}
	c := testConfig("api.test")
	c.Credentials = []wire.Credential{{Name: "model", Host: "api.test", Port: 443, Present: "bearer", Secret: "s", Placeholder: "ph", Inspect: true}}
	if _, err := New(c, nil, Trust{}); err == nil || !strings.Contains(err.Error(), "authority") {
		t.Errorf("a credential: %v", err)
	}
	g := newTest(t, testConfig("api.test"))
	if err := g.apply(wire.Request{Op: "allow", Rule: "GET https://other.test/v1"}); err == nil || g.resolvable("other.test").Allowed {
		t.Errorf("while it runs: %v", err)
	}
	if err := g.apply(wire.Request{Op: "join", Member: &wire.Member{Container: "b", Policy: egress.Config{Allow: []string{"GET https://api.test/v1"}}}}); err == nil || len(g.members) > 0 {
		t.Errorf("another container: %v", err)
	}
	// A connection that is relayed does not stay when another container has its requests judged; one that is inspected does.
	relayed, inspected := &session{name: "api.test", port: 443, proto: egress.TLS}, &session{name: "api.test", port: 443, proto: egress.TLS, inspected: true}
	p, err := egress.Compile(egress.Config{Allow: []string{"GET https://api.test/v1"}})
	if err != nil || g.stillAllowed(relayed, p) || !g.stillAllowed(inspected, p) || !g.stillAllowed(relayed, g.policy.Load()) {
		t.Errorf("it is wrong who stays: %v", err)
	}
	// With one, the ceiling holds as for every rule.
	in := newInspector(t, nil, "GET https://api.test/v1")
	in.g.config.Ceiling = &egress.Config{Allow: []string{"GET,PUT https://*.test/v1"}}
	for rule, want := range map[string]bool{"PUT https://other.test/v1/x": true, "PUT https://other.test": false, "other.test": false, "DELETE https://api.test/v1": false} {
		if err := in.g.apply(wire.Request{Op: "allow", Rule: rule}); (err == nil) != want {
			t.Errorf("%s: %v", rule, err)
		}
	}
}
