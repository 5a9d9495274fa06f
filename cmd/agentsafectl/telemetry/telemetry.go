package telemetry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/report"
)

// SentFile is beside a log that has been sent.
const SentFile = "otlp.sent"

// Config says where spans go.
type Config struct {
	// Endpoint is the whole URL, such as http://127.0.0.1:4318/v1/traces.
	Endpoint string            `json:"endpoint"`
	Headers  map[string]string `json:"headers,omitempty"`
	// Service is the value of service.name, "agentsafe" if empty.
	Service string `json:"service,omitempty"`
}

// Load reads a configuration. The error is os.ErrNotExist if there is none.
func Load(name string) (*Config, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("load telemetry: %w", err)
	}
	c := &Config{}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(c); err != nil {
		return nil, fmt.Errorf("load telemetry from %s: %w", name, err)
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("load telemetry from %s: endpoint %q: want a URL such as http://127.0.0.1:4318/v1/traces", name, c.Endpoint)
	}
	if c.Service == "" {
		c.Service = "agentsafe"
	}
	return c, nil
}

// Send sends the log in dir, unless it has been sent; done says that it is complete and has arrived.
func Send(ctx context.Context, c *Config, dir string) (done bool, err error) {
	if _, err := os.Stat(filepath.Join(dir, SentFile)); err == nil {
		return true, nil
	}
	r, err := report.Read(dir, report.Verification{State: "intact"})
	if err != nil {
		return false, err
	}
	if r.Running {
		return false, nil
	}
	body, err := json.Marshal(Encode(r, c.Service))
	if err != nil {
		return false, fmt.Errorf("encode spans: %w", err)
	}
	const sendTimeout = 15 * time.Second
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Endpoint, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("send spans: %w", err)
	}
	q.Header.Set("Content-Type", "application/json")
	for k, v := range c.Headers {
		q.Header.Set(k, v)
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return false, fmt.Errorf("send spans: %w", err)
	}
	defer a.Body.Close()
	const maxAnswer = 4 << 10
	text, err := io.ReadAll(io.LimitReader(a.Body, maxAnswer))
	if err != nil {
		return false, fmt.Errorf("send spans: %w", err)
	}
	if a.StatusCode/100 != 2 {
		return false, fmt.Errorf("send spans to %s: %s: %.200q", c.Endpoint, a.Status, text)
	}
	return true, errors.Join(os.WriteFile(filepath.Join(dir, SentFile), []byte(c.Endpoint+"\n"), 0o600))
}

// The messages of OTLP in JSON, as far as they are used. Source: opentelemetry-proto 1.x, trace.proto; OTLP
// specification, "JSON Protobuf Encoding": ids in hex, 64-bit integers as strings.
type (
	// Request is an ExportTraceServiceRequest.
	Request struct {
		ResourceSpans []ResourceSpans `json:"resourceSpans"`
	}
	// ResourceSpans are the spans of one service.
	ResourceSpans struct {
		Resource   Resource     `json:"resource"`
		ScopeSpans []ScopeSpans `json:"scopeSpans"`
	}
	// Resource describes the service.
	Resource struct {
		Attributes []Attribute `json:"attributes"`
	}
	// ScopeSpans are the spans of one library.
	ScopeSpans struct {
		Scope Scope  `json:"scope"`
		Spans []Span `json:"spans"`
	}
	// Scope names the library.
	Scope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	// Span is a run or an exec.
	Span struct {
		TraceID    string      `json:"traceId"`
		SpanID     string      `json:"spanId"`
		ParentID   string      `json:"parentSpanId,omitempty"`
		Name       string      `json:"name"`
		Kind       int         `json:"kind"`
		Start      string      `json:"startTimeUnixNano"`
		End        string      `json:"endTimeUnixNano"`
		Attributes []Attribute `json:"attributes,omitempty"`
		Events     []Event     `json:"events,omitempty"`
		Status     Status      `json:"status"`
	}
	// Event is a limit that was met, or a denial.
	Event struct {
		Time       string      `json:"timeUnixNano"`
		Name       string      `json:"name"`
		Attributes []Attribute `json:"attributes,omitempty"`
	}
	// Status says whether it went well.
	Status struct {
		Code    int    `json:"code,omitempty"` // 0 unset, 2 error
		Message string `json:"message,omitempty"`
	}
	// Attribute is a name with a value.
	Attribute struct {
		Key   string `json:"key"`
		Value Value  `json:"value"`
	}
	// Value is one of its fields.
	Value struct {
		Text *string `json:"stringValue,omitempty"`
		Int  *string `json:"intValue,omitempty"`
		List *List   `json:"arrayValue,omitempty"`
	}
	// List is a list of values.
	List struct {
		Values []Value `json:"values"`
	}
)

const (
	kindInternal = 1
	statusError  = 2
)

func text(key, value string) Attribute { return Attribute{key, Value{Text: &value}} }

func number(key string, value int64) Attribute {
	s := strconv.FormatInt(value, 10)
	return Attribute{key, Value{Int: &s}}
}

func list(key string, values []string) Attribute {
	l := &List{Values: []Value{}}
	for _, v := range values {
		l.Values = append(l.Values, Value{Text: &v})
	}
	return Attribute{key, Value{List: l}}
}

func nano(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

// parent takes a W3C traceparent apart. Source: W3C Trace Context, version 00.
func parent(header string) (trace, span string, ok bool) {
	p := strings.Split(header, "-")
	isHex := func(s string, n int) bool {
		_, err := hex.DecodeString(s)
		return err == nil && len(s) == n && s == strings.ToLower(s) && strings.Trim(s, "0") != ""
	}
	if len(p) < 4 || len(p[0]) != 2 || p[0] == "ff" || !isHex(p[1], 32) || !isHex(p[2], 16) {
		return "", "", false
	}
	return p[1], p[2], true
}

// id derives an id from what makes a log unique.
func id(r *report.Report, what string, size int) string {
	sum := sha256.Sum256([]byte(r.Container.ID + "\x00" + r.Container.Created.UTC().Format(time.RFC3339Nano) + "\x00" + what))
	return hex.EncodeToString(sum[:size])
}

// Encode makes the spans of a report.
func Encode(r *report.Report, service string) *Request {
	trace, up, ok := parent(r.Container.TraceParent)
	if !ok {
		trace, up = id(r, "trace", 16), ""
	}
	root := Span{
		TraceID: trace, SpanID: id(r, "run", 8), ParentID: up, Name: "agentsafe run", Kind: kindInternal,
		Start: nano(r.Container.Created), End: nano(r.Ended),
		Attributes: []Attribute{
			text("container.id", r.Container.ID), text("agentsafe.profile", r.Container.Profile), text("agentsafe.policy_hash", r.Container.PolicyHash),
			list("process.command_args", r.Argv), number("agentsafe.memory_peak_bytes", int64(r.Peaks.MemoryBytes)), //nolint:gosec // sizes fit
			number("agentsafe.cpu_nanoseconds", int64(r.Peaks.CPUNanoseconds)), //nolint:gosec // likewise
		},
	}
	for key, value := range map[string]string{
		"agentsafe.engine": r.Container.Engine, "container.image.name": r.Container.Image, "agentsafe.owner": r.Container.Owner, "agentsafe.task": r.Container.Task,
	} {
		if value != "" {
			root.Attributes = append(root.Attributes, text(key, value))
		}
	}
	if r.Status != nil {
		root.Attributes = append(root.Attributes, number("process.exit.code", int64(*r.Status)))
	}
	if r.End != nil && r.End.Reason != "" {
		root.Attributes = append(root.Attributes, text("agentsafe.end_reason", string(r.End.Reason)))
		root.Status = Status{statusError, r.End.Message}
	} else if r.Status != nil && *r.Status != 0 {
		root.Status = Status{statusError, r.Verdict()}
	}
	for _, e := range r.Events {
		root.Events = append(root.Events, Event{nano(e.Time), e.Kind, []Attribute{text("message", e.Text)}})
	}
	for _, d := range r.Denials {
		root.Events = append(root.Events, Event{nano(d.Time), "denial", []Attribute{text("rule", d.Rule), text("message", d.Text)}})
	}
	spans := []Span{root}
	for i := range r.Execs {
		spans = append(spans, execSpan(r, i, &root))
	}
	return &Request{[]ResourceSpans{{
		Resource{[]Attribute{text("service.name", service), text("service.version", r.Runtime)}},
		[]ScopeSpans{{Scope{"agentsafe", r.Runtime}, spans}},
	}}}
}

func execSpan(r *report.Report, i int, root *Span) Span {
	e := &r.Execs[i]
	s := Span{
		TraceID: root.TraceID, SpanID: id(r, "exec "+strconv.Itoa(i), 8), ParentID: root.SpanID, Name: "agentsafe exec", Kind: kindInternal,
		Start: nano(e.Start), End: root.End,
		Attributes: []Attribute{text("agentsafe.exec_id", e.ID), number("process.pid", int64(e.PID)), list("process.command_args", e.Argv)},
	}
	if len(e.Argv) > 0 {
		s.Name = "exec " + filepath.Base(e.Argv[0])
	}
	if !e.End.IsZero() {
		s.End = nano(e.End)
	}
	if e.Status != nil {
		s.Attributes = append(s.Attributes, number("process.exit.code", int64(*e.Status)))
	}
	if e.Transaction != 0 {
		s.Attributes = append(s.Attributes, number("agentsafe.transaction", int64(e.Transaction)))
	}
	if e.TimedOut || e.Status != nil && *e.Status != 0 {
		s.Status = Status{statusError, e.StatusText()}
	}
	return s
}
