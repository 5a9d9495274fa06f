package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/agentsafe/agentsafe/netns/egress"
)

// refuse answers a request with the reason.
func (w *web) refuse(rw http.ResponseWriter, r *http.Request, s *session, d egress.Decision) {
	w.g.log.add(s.request(r).decided(d))
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("X-Agentsafe-Refused", string(d.Code))
	if !s.inspected { // where others of its requests are allowed
		rw.Header().Set("Connection", "close") // nothing more is expected of who was refused
	}
	rw.WriteHeader(statusOf(d))
	rw.Write(refusalBody(s.name, s.address, s.port, d)) //nolint:errcheck // the client may be gone
}

func statusOf(d egress.Decision) int {
	if d.Code == egress.Unreachable {
		return http.StatusBadGateway
	}
	return http.StatusForbidden
}

// refusalBody is one line that a program can read, so that an agent stops trying.
func refusalBody(name, address string, port uint16, d egress.Decision) []byte {
	if name == "" {
		name = address
	}
	line, err := json.Marshal(map[string]any{
		"error": "refused by agentsafe", "code": d.Code, "host": name, "port": port, "rule": d.Rule, "reason": d.Reason,
	})
	if err != nil {
		return nil
	}
	return append(line, '\n')
}

// refusalResponse is a whole HTTP response, for a connection that no server has taken over.
func refusalResponse(name, address string, port uint16, d egress.Decision) []byte {
	body := refusalBody(name, address, port, d)
	status := statusOf(d)
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nX-Agentsafe-Refused: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), d.Code, len(body), body)
	return b.Bytes()
}
