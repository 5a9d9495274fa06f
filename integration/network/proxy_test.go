package network

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// upstream is an HTTP proxy in the world, which knows names of its own.
type upstream struct {
	mu    sync.Mutex
	asked []string // METHOD target authorization
}

// startUpstream serves one; secure is nil without TLS.
func startUpstream(t *testing.T, address string, secure *tls.Config) *upstream {
	t.Helper()
	l, err := outside.listen(address)
	if err != nil {
		t.Fatal(err)
	}
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	u := &upstream{}
	go http.Serve(l, u) //nolint:errcheck,gosec // ends with its socket
	t.Cleanup(func() { l.Close() })
	return u
}

// ServeHTTP implements http.Handler.
func (u *upstream) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.asked = append(u.asked, r.Method+" "+r.RequestURI+" "+r.Header.Get("Proxy-Authorization"))
	u.mu.Unlock()
	if r.Host == "forbidden.test:443" || r.Host == "forbidden.test" {
		http.Error(rw, "not by this proxy", http.StatusForbidden)
		return
	}
	if r.Method != http.MethodConnect {
		answer := httptest.NewRecorder()
		outside.web(answer, r)
		rw.Header().Set("Via", "1.1 upstream")
		fmt.Fprint(rw, answer.Body)
		return
	}
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	var there net.Conn
	err = outside.within(func() (err error) {
		there, err = net.Dial("tcp", net.JoinHostPort(public4, port))
		return err
	})
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadGateway)
		return
	}
	here, buffered, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		there.Close()
		return
	}
	io.WriteString(here, "HTTP/1.1 200 go on\r\n\r\n") //nolint:errcheck // a test's client
	go func() {
		io.Copy(there, buffered.Reader)   //nolint:errcheck // likewise
		there.(*net.TCPConn).CloseWrite() //nolint:errcheck // likewise
	}()
	go func() {
		defer there.Close()
		defer here.Close()
		io.Copy(here, there) //nolint:errcheck // likewise
	}()
}

func (u *upstream) requests() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return strings.Join(u.asked, "\n")
}

// proxyRules are what the tasks behind a proxy may reach; two of the names lead where nobody may get, or where the proxy lets
// nobody.
func proxyRules() string {
	return rules("example.com:80,443", "known-there.test:80,443", "www.example.com", "private.test:80,443", "forbidden.test:80,443", "tcp://git.test:5432", "tcp://"+public4b+"/32:5432")
}

// proxyAuth is a file for the configuration, and authorized what the proxy sees of it.
func proxyAuth(t *testing.T) string {
	t.Helper()
	auth := filepath.Join(box.TempDir(t), "auth")
	if err := os.WriteFile(auth, []byte("user:word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return auth
}

const authorized = "Basic dXNlcjp3b3Jk"

// TestUpstreamProxy: where nothing gets out without a proxy, the gateway goes by it, without the task noticing. The proxy
// is on a private address, which no rule would let anybody reach.
func TestUpstreamProxy(t *testing.T) {
	u := startUpstream(t, "10.9.9.9:3129", nil)
	administer(t, profileFile(t, proxyRules()),
		"[network]", `proxy = "http://10.9.9.9:3129"`, `noProxy = ["www.example.com"]`, `proxyAuth = "`+proxyAuth(t)+`"`)
	outside.name("forbidden.test", public4)
	e := startDocker(t)
	for _, where := range []string{"none", "bridge"} {
		t.Run(where, func(t *testing.T) { outByProxy(t, e, u, where) })
	}
	// What is inside of a container tells nothing of the proxy's password.
	name := e.Up(t, harness.Peer{Name: "agentsafe"}, image, "sleep", "1000")
	if r := e.Do(t, "exec", name, "sh", "-c", "env; cat /proc/[0-9]*/environ; cat /dev/agentsafe/* 2>/dev/null"); strings.Contains(r.Stdout, "user:word") {
		t.Errorf("%v", r)
	}
}

// TestUpstreamProxy_TLS: the same with a proxy that is spoken to by TLS, whose certificate is that of its name.
func TestUpstreamProxy_TLS(t *testing.T) {
	trustWorld(t)
	u := startUpstream(t, "10.9.9.9:3130", &tls.Config{GetCertificate: outside.certificate, MinVersion: tls.VersionTLS12})
	outside.name("proxy.test", "10.9.9.9")
	outside.name("forbidden.test", public4)
	administer(t, profileFile(t, proxyRules()),
		"[network]", `proxy = "https://proxy.test:3130"`, `noProxy = ["www.example.com"]`, `proxyAuth = "`+proxyAuth(t)+`"`)
	e := startDocker(t)
	t.Run("none", func(t *testing.T) { outByProxy(t, e, u, "none") })
	// Bytes in bulk, both ways and to their ends.
	flags := []string{"run", "--rm", "--runtime", "agentsafe", "--network", "none", "-e", searchPath}
	for _, m := range hostPrograms() {
		flags = append(flags, "-v", m)
	}
	r := e.Do(t, append(flags, image, "timeout", "100", "sh", "-c", `yes 0123456789abcde | head -c 20000000 | /usr/bin/nc.openbsd -N git.test 5432 | tail -c +23 | sha256sum; yes 0123456789abcde | head -c 20000000 | sha256sum`)...)
	if sums := strings.Fields(r.Stdout); len(sums) != 4 || sums[0] != sums[2] {
		t.Errorf("%v", r)
	}
	// Somebody else's certificate is no proxy's: nothing gets out, and no word is said to it.
	outside.name("impostor.test", "10.9.9.9")
	configure(t, `default = "net"`, "[network]", `proxy = "https://impostor.test:3131"`, `proxyAuth = "`+proxyAuth(t)+`"`)
	impostor := startUpstream(t, "10.9.9.9:3131", &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return outside.certificate(&tls.ClientHelloInfo{ServerName: "proxy.test"})
	}, MinVersion: tls.VersionTLS12})
	if r := e.Do(t, append(flags, image, "timeout", "60", "curl", "-sSk", "https://example.com/x")...); r.Exit == 0 || impostor.requests() != "" {
		t.Errorf("%v\nasked: %s", r, impostor.requests())
	}
}

// outByProxy tries what goes by the proxy, and what must not get to it.
func outByProxy(t *testing.T, e *harness.Docker, u *upstream, where string) {
	t.Helper()
	u.mu.Lock()
	u.asked = nil
	u.mu.Unlock()
	flags := []string{"--network", where, "-e", searchPath}
	for _, m := range hostPrograms() {
		flags = append(flags, "-v", m)
	}
	name := e.Up(t, harness.Peer{Name: "agentsafe"}, append(flags, image, "sleep", "1000")...)
	for _, tc := range []struct{ name, script, want, asked string }{
		{"TLS", "curl -sSk https://example.com/x", "^world: example.com /x\n$", "CONNECT example.com:443 " + authorized},
		{"plain HTTP", "curl -sS http://example.com/y", "^world: example.com /y\n$", "GET http://example.com/y " + authorized},
		{"a name that the proxy knows", "curl -sSk https://known-there.test/z", "^world: known-there.test /z\n$", "CONNECT known-there.test:443 " + authorized},
		{"plain HTTP to it", "curl -sS http://known-there.test/z", "^world: known-there.test /z\n$", "GET http://known-there.test/z " + authorized},
		{"a server that speaks first", "nc -w 5 git.test 5432 </dev/null", "^hello from a database", "CONNECT git.test:5432 " + authorized},
		{"an address", "nc -w 5 " + public4b + " 5432 </dev/null", "^hello from a database", "CONNECT " + public4b + ":5432 " + authorized},
		{"not by the proxy", "curl -sSk https://www.example.com/x", "^world: www.example.com /x\n$", ""},
		{"refused by the proxy", "curl -sSk https://forbidden.test/ 2>&1", "(?i)alert|denied|SSL", "CONNECT forbidden.test:443 " + authorized},
		{"plain HTTP refused by the proxy", "curl -sS http://forbidden.test/", "not by this proxy", "GET http://forbidden.test/ " + authorized},
	} {
		r := e.Do(t, "exec", name, "timeout", "60", "sh", "-c", tc.script)
		if !regexp.MustCompile(tc.want).MatchString(r.Stdout) {
			t.Errorf("%s: want %s\n%v", tc.name, tc.want, r)
		}
		if tc.asked != "" && !slices.Contains(strings.Split(u.requests(), "\n"), tc.asked) {
			t.Errorf("%s: the proxy was not asked %q:\n%s", tc.name, tc.asked, u.requests())
		}
	}
	before := u.requests()
	if strings.Contains(before, "www.example.com") {
		t.Errorf("noProxy: %s", before)
	}
	for _, script := range []string{
		"curl -sSk https://other.test/", "curl -sSk https://private.test/", "curl -sS -f http://private.test/", "curl -sS -f http://10.9.9.9:3129/",
		"curl -sS -f http://outward.agentsafe.internal/", "curl -sS -f http://169.254.169.254/", "curl -sS -x http://10.9.9.9:3129 -f http://example.com/",
	} {
		if r := e.Do(t, "exec", name, "timeout", "60", "sh", "-c", script); r.Exit == 0 {
			t.Errorf("%s is not refused:\n%v", script, r)
		}
	}
	if after := u.requests(); after != before {
		t.Errorf("the proxy was asked for what is refused:\n%s", after)
	}
}
