package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// FuzzHTTPHead: whatever a task sends to a name, what leaves are requests to that name, and no more of them than were
// judged.
func FuzzHTTPHead(f *testing.F) {
	const get = "GET /pool/x HTTP/1.1\r\nHost: example.com\r\n"
	for _, seed := range []string{
		get + "\r\n", get + "\r\n" + get + "\r\n", "GET http://example.com/pool HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"GET /pool HTTP/1.1\r\nHost: other.test\r\n\r\n", "GET /pool HTTP/1.1\r\nHost: example.com:81\r\n\r\n",
		"POST /pool HTTP/1.1\r\nHost: example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + get + "\r\n",
		"POST /pool HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nT: x\r\n\r\n",
		"POST /pool HTTP/1.1\r\nHost: example.com\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde", "CONNECT other.test:443 HTTP/1.1\r\nHost: example.com\r\n\r\n",
		get + "Connection: upgrade, host\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n", get + "X: a\r\n b\r\nExpect: 100-continue\r\n\r\n",
		"GET /pool/../secret HTTP/1.1\r\nHost: example.com\r\n\r\n", "GET /pool%2f..%2fsecret HTTP/1.0\r\nHost: EXAMPLE.com.\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET //other.test/pool HTTP/1.1\r\nHost: example.com\r\nX-Forwarded-Host: other.test\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"GET /pool HTTP/1.1\r\nHost: example.com\r\nHost: other.test\r\n\r\n", "GET /pool HTTP/1.1\r\nHost: user@example.com\r\n\r\n", "GET /pool HTTP/1.1\nHost:example.com\n\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		sniff(sent)
		g := newTest(t, testConfig("GET,POST http://example.com/pool"))
		g.web.transport.DisableKeepAlives = true
		var left sync.WaitGroup
		g.web.transport.DialContext = func(_ context.Context, _, target string) (net.Conn, error) {
			if target != "example.com:80" {
				t.Errorf("dials %q", target)
			}
			here, there := net.Pipe()
			left.Go(func() {
				if err := answerOnce(there); err != nil {
					t.Error(err)
				}
			})
			return here, nil
		}
		judged, r := 0, bufio.NewReader(bytes.NewReader(sent))
		for judged < 32 {
			request, err := http.ReadRequest(r)
			if err != nil {
				break
			}
			judged++
			s := &session{g: g, name: "example.com", port: 80, proto: egress.HTTP}
			answer := httptest.NewRecorder()
			g.web.ServeHTTP(answer, request.WithContext(context.WithValue(t.Context(), sessionKey{}, s)))
			if answer.Code != http.StatusForbidden && answer.Code != http.StatusOK && answer.Code != http.StatusBadGateway {
				t.Errorf("answered %d", answer.Code)
			}
			io.Copy(io.Discard, request.Body) //nolint:errcheck // as the server does before the next request
		}
		g.web.closeIdle()
		left.Wait()
	})
}

// answerOnce serves one request and reports what must not have been sent.
func answerOnce(c net.Conn) error {
	defer c.Close()
	r := bufio.NewReader(c)
	request, err := http.ReadRequest(r)
	if err != nil {
		return nil
	}
	switch {
	case request.Host != "example.com" && request.Host != "example.com:80" && !strings.EqualFold(strings.TrimSuffix(request.Host, "."), "example.com"):
		return errors.New("a request to " + request.Host)
	case request.Method != http.MethodGet && request.Method != http.MethodPost || request.URL.Host != "":
		return errors.New("a request " + request.Method + " " + request.RequestURI)
	case !strings.HasPrefix(request.URL.EscapedPath(), "/pool") || slices.Contains(strings.Split(request.URL.Path, "/"), ".."):
		return errors.New("a request for " + request.RequestURI)
	}
	if _, err := io.Copy(io.Discard, request.Body); err != nil {
		return nil
	}
	io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") //nolint:errcheck // the gateway may be gone
	if rest, _ := io.ReadAll(r); len(rest) > 0 {
		return errors.New("a second request: " + string(rest))
	}
	return nil
}
