package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/telemetry"
)

// TestTelemetry_Run: a host that is configured for it sends the spans of a run when the run has ended.
func TestTelemetry_Run(t *testing.T) {
	b := newBench(t)
	arrived := make(chan telemetry.Request, 8)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var q telemetry.Request
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		arrived <- q
	}))
	defer server.Close()
	config := filepath.Join(b.dir, "etc")
	if err := os.Mkdir(config, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "telemetry.json"), []byte(`{"endpoint": "`+server.URL+`/v1/traces"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	profile := filepath.Join(b.dir, "evidence.yaml")
	if err := os.WriteFile(profile, []byte(evidenceProfile), 0o644); err != nil {
		t.Fatal(err)
	}
	// In a mount namespace of its own, /etc/agentsafe is the test's.
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c",
		`mkdir -p /etc/agentsafe && mount --bind "$CONFIG" /etc/agentsafe && exec "$0" run --quiet --id traced --profile "$PROFILE" -- sh -c 'exit 3'`, b.wrapper())
	cmd.Dir, cmd.Env = b.workspace, append(os.Environ(), "CONFIG="+config, "PROFILE="+profile)
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 3 {
		t.Fatalf("%v\n%s", err, out)
	}
	select {
	case q := <-arrived:
		spans := q.ResourceSpans[0].ScopeSpans[0].Spans
		if len(spans) != 1 || spans[0].Name != "agentsafe run" || spans[0].Status.Code == 0 {
			t.Errorf("%+v", spans)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no span has arrived")
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // the sender notes it, then ends
		if sent, err := filepath.Glob(filepath.Join(b.dir, "data", "evidence", "traced", "*", telemetry.SentFile)); err != nil || len(sent) == 1 {
			return
		} else if time.Now().After(deadline) {
			t.Fatal("it is not noted that the log was sent")
		}
	}
}

// TestMetrics_Socket reads the metrics of a container that runs from a socket.
func TestMetrics_Socket(t *testing.T) {
	b := newBench(t)
	b.warmRun("measured")
	socket := filepath.Join(b.dir, "metrics.sock")
	cmd := exec.Command(b.wrapper(), "metrics", "--listen", "unix:"+socket)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(os.Interrupt) //nolint:errcheck // it ends
		if err := cmd.Wait(); err != nil {
			t.Errorf("end: %v", err)
		}
	}()
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) }}}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		r, err := client.Get("http://localhost/metrics")
		if err != nil {
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
			continue
		}
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		for _, want := range []string{`agentsafe_container_info{id="measured"`, `agentsafe_container_cpu_seconds_total{id="measured"} `, `agentsafe_container_processes{id="measured"} `} {
			if !strings.Contains(string(data), want) {
				t.Errorf("%s is missing in\n%s", want, string(data))
			}
		}
		if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("the socket is %v, %v", st.Mode(), err)
		}
		return
	}
}
