package telemetry

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/runtime/audit"
)

const traceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// logOf writes a log with one exec.
func logOf(t *testing.T, complete bool, traceparent string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "log")
	w, err := audit.Open(dir, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	add := func(kind string, data any) {
		if err := w.Append(kind, data); err != nil {
			t.Fatal(err)
		}
	}
	add(audit.TypeCreate, map[string]any{"id": "c", "created": time.Now().UTC(), "profile": "agent", "argv": []string{"sh"}, "traceparent": traceparent})
	add(audit.TypeStart, struct{}{})
	add(audit.TypeExec, map[string]any{"id": "e", "pid": 7, "argv": []string{"/bin/false", "x"}})
	add(audit.TypeExecExit, map[string]any{"id": "e", "pid": 7, "status": 1})
	if complete {
		add(audit.TypeExit, map[string]any{"status": 0})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestSend: a collector that refuses gets the log later, one that takes it gets it once.
func TestSend(t *testing.T) {
	var got []Request
	answer := http.StatusServiceUnavailable
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		var q Request
		if err != nil || json.Unmarshal(data, &q) != nil || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Key") != "k" {
			t.Errorf("%v: %s %v", err, data, r.Header)
		}
		if answer == http.StatusOK {
			got = append(got, q)
		}
		w.WriteHeader(answer)
	}))
	defer server.Close()
	c := &Config{Endpoint: server.URL + "/v1/traces", Service: "s", Headers: map[string]string{"X-Key": "k"}}
	dir := logOf(t, true, traceParent)
	if done, err := Send(t.Context(), c, dir); err == nil || done {
		t.Errorf("a collector that refuses: %v, %v", done, err)
	}
	answer = http.StatusOK
	for range 2 {
		if done, err := Send(t.Context(), c, dir); err != nil || !done {
			t.Errorf("%v, %v", done, err)
		}
	}
	if done, err := Send(t.Context(), c, logOf(t, false, "")); err != nil || done {
		t.Errorf("a container that runs: %v, %v", done, err)
	}
	if len(got) != 1 {
		t.Fatalf("%d requests arrived, want 1", len(got))
	}
	spans := got[0].ResourceSpans[0].ScopeSpans[0].Spans
	if len(spans) != 2 || spans[0].TraceID != "0af7651916cd43dd8448eb211c80319c" || spans[0].ParentID != "b7ad6b7169203331" ||
		spans[1].ParentID != spans[0].SpanID || spans[1].TraceID != spans[0].TraceID || len(spans[1].SpanID) != 16 {
		t.Errorf("spans %+v", spans)
	}
	if spans[1].Name != "exec false" || spans[1].Status.Code != statusError || spans[0].Status.Code != 0 {
		t.Errorf("spans %+v", spans)
	}
	for _, s := range spans {
		from, ferr := strconv.ParseInt(s.Start, 10, 64)
		to, terr := strconv.ParseInt(s.End, 10, 64)
		if ferr != nil || terr != nil || from > to || from == 0 {
			t.Errorf("times %s to %s", s.Start, s.End)
		}
	}
}

func TestParent(t *testing.T) {
	for header, want := range map[string]bool{
		traceParent: true, "": false, "00-0-0-0": false, "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false, "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01": false,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333g-01": false,
	} {
		if _, _, ok := parent(header); ok != want {
			t.Errorf("%q: %v", header, ok)
		}
	}
}

func TestLoad(t *testing.T) {
	name := filepath.Join(t.TempDir(), "telemetry.json")
	for text, good := range map[string]bool{
		`{"endpoint": "http://127.0.0.1:4318/v1/traces"}`: true, `{"endpoint": "127.0.0.1:4318"}`: false, `{"endpoint": "file:///etc/passwd"}`: false,
		`{"endpoints": "http://127.0.0.1"}`: false, `{`: false,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := Load(name); (err == nil) != good {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
}
