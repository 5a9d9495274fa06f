package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// hostile is text that a task might choose: markup, the ends of what it stands in, what a terminal obeys, and what a
// reader does not see.
const hostile = "</pre></style></title><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\x1b[2J\u202e`|\n# x"

// sampleUsage is that of a minute: it climbs to the limit of memory, computes in bursts, and starts processes.
func sampleUsage() *audit.Usage {
	u := &audit.Usage{EveryMillis: 400}
	var cpu int64
	for i := range 147 {
		if i/20%2 == 1 {
			cpu += 360
		}
		u.MemoryBytes = append(u.MemoryBytes, uint64(min(20+i*i/40, 250))<<20)
		u.CPUMillis = append(u.CPUMillis, cpu)
		u.PIDs = append(u.PIDs, uint64(2+i%50*38/50))
	}
	return u
}

// hostileReport has it everywhere.
func hostileReport() *Report {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	three, zero := 3, 0
	r := &Report{
		Log: hostile, Runtime: hostile, Argv: []string{hostile, "b"}, EnvNames: []string{hostile}, Cwd: hostile,
		Container:    audit.Container{ID: hostile, Created: at, Engine: hostile, Image: hostile, ImageDigest: hostile, SpecHash: hostile, Profile: hostile, PolicyHash: hostile, Owner: hostile, Task: hostile, TraceParent: hostile},
		Verification: Verification{State: "intact", Signature: "good", KeyID: hostile, Note: hostile, Head: hostile, Closed: true, Findings: []string{hostile}},
		Started:      at.Add(time.Second), Ended: at.Add(time.Minute), Status: &three, End: &container.End{Reason: "oom", Message: hostile, OOMKills: 3},
		Limits: profiles.Limits{WallClock: 2 * time.Minute, CPUTime: 10 * time.Second, PIDs: 100, EgressBytes: 1 << 20},
		Peaks:  Peaks{MemoryBytes: 250 << 20, MemoryLimitBytes: 256 << 20, CPUNanoseconds: 4e9, PIDsPeak: 40, PIDsLimit: 100},
		Execs: []Exec{
			{ID: hostile, PID: 1, Argv: []string{"sh", "-c", hostile}, Start: at.Add(2 * time.Second), End: at.Add(9 * time.Second), Status: &zero, Transaction: 1},
			{PID: 2, Argv: []string{"make", "test"}, Start: at.Add(8 * time.Second), End: at.Add(30 * time.Second), Status: &three},
			{PID: 3, Argv: []string{"sleep", "100"}, Start: at.Add(30 * time.Second), End: at.Add(45 * time.Second), Status: &three, TimedOut: true},
			{PID: 4, Argv: []string{"tail", "-f"}, Start: at.Add(50 * time.Second)},
		},
		Transactions: []Transaction{
			{N: 1, Status: layer.StatusCommitted, Exit: &zero, Changes: 2, Bytes: 4096, Diff: []Line{{"head", "modify file /job/main.go"}, {"hunk", "@@ -1 +1 @@"}, {"del", "-old"}, {"add", "+" + hostile}, {"", " same"}}},
			{N: 2, Status: layer.StatusConflict, Reason: hostile, Conflicts: []layer.Conflict{{Workspace: "/job", Path: hostile, Reason: hostile}}, NoDiff: hostile},
		},
		Promotions: []Promotion{{Time: at, State: "requested", By: hostile, Paths: []string{hostile}, Message: hostile}},
		Hosts:      []Host{{Name: hostile, Port: 443, Refused: 2, Reason: hostile}, {Name: "example.com", Port: 443, Allowed: 1, BytesIn: 5000, BytesOut: 700, Rule: hostile}},
		Denials:    []Denial{{at, hostile, hostile}}, Events: []Event{{at, hostile, hostile, true}}, Usage: sampleUsage(),
		Matrix: [][2]string{{"reads files", "/"}, {hostile, hostile}}, Omitted: map[string]int{hostile: 3},
	}
	return r
}

// TestWriteHTML_Hostile: nothing that a task has chosen becomes markup, and the page asks nobody for anything.
func TestWriteHTML_Hostile(t *testing.T) {
	var b bytes.Buffer
	if err := hostileReport().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, bad := range []string{"<script", "<img", "onerror=\"", "\x1b", "\u202e", "ZgotmplZ"} {
		if i := strings.Index(page, bad); i >= 0 {
			t.Errorf("the page holds %q: %.200s", bad, page[max(0, i-100):])
		}
	}
	if found := regexp.MustCompile(`(?i)(src|href|url\()\s*=?\s*["']?(https?:|//)`).FindString(page); found != "" {
		t.Errorf("the page asks for %s", found)
	}
	if !strings.Contains(page, "default-src 'none'") {
		t.Error("the page has no policy")
	}
	for _, want := range []string{"timed out", "250.0 MiB", "of 256.0 MiB", "3 processes were ended", `class="refused"`, "[2J", `\u202e`} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
}

func TestWriteMarkdown_Hostile(t *testing.T) {
	var b bytes.Buffer
	if err := hostileReport().WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	for n, line := range strings.Split(b.String(), "\n") {
		// Outside of code, markup is escaped; nothing breaks a line or a table.
		bare := regexp.MustCompile("(`+).*?[^`]`+").ReplaceAllString(line, "")
		if !strings.HasPrefix(line, "    ") && strings.Contains(bare, "<script") && !strings.Contains(bare, `\<script`) {
			t.Errorf("line %d: %s", n+1, line)
		}
		if strings.ContainsAny(line, "\x1b\u202e") || line == "# x" {
			t.Errorf("line %d: %q", n+1, line)
		}
	}
}

func TestWriteJSON(t *testing.T) {
	var b bytes.Buffer
	in := hostileReport()
	if err := in.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var out Report
	if err := json.Unmarshal(b.Bytes(), &out); err != nil || out.Argv[0] != hostile || out.Execs[2].TimedOut != true || len(out.Hosts) != 2 {
		t.Errorf("%+v, %v", out, err)
	}
}

// TestRead makes a report of a log as a supervisor writes it.
func TestRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	w, err := audit.Open(dir, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := profiles.Builtin("offline")
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range []struct {
		kind string
		data any
	}{
		{audit.TypeCreate, map[string]any{"id": "c", "created": time.Now().UTC(), "profile": "offline", "argv": []string{"sh"}, "policy": agent, "limits": profiles.Limits{PIDs: 7}}},
		{audit.TypeDenial, map[string]string{"rule": "capabilities", "text": "cut"}},
		{audit.TypeStart, struct{}{}},
		{audit.TypeExec, map[string]any{"id": "e1", "pid": 10, "argv": []string{"a"}}},
		{audit.TypeExec, map[string]any{"id": "e2", "pid": 11, "argv": []string{"b"}}},
		{audit.TypeExecExit, map[string]any{"id": "e1", "pid": 10, "status": 4, "millis": 5}},
		{audit.TypeTransaction, map[string]any{"n": 1, "pid": 10, "status": "committed", "changes": 2}},
		{audit.TypeEgress, map[string]any{"event": "dns", "decision": "refuse", "name": "a.test", "port": 443, "reason": "no rule"}},
		{audit.TypeEgress, map[string]any{"event": "connect", "decision": "refuse", "name": "a.test", "port": 443, "reason": "no rule", "count": 3}},
		{audit.TypeEgress, map[string]any{"event": "close", "name": "b.test", "port": 443, "bytesIn": 9, "bytesOut": 4}},
		{audit.TypePromotion, map[string]any{"state": "requested", "by": "mcp", "items": 2}},
		{audit.TypeLimit, container.End{Reason: container.EndWallClock, Message: "ran longer"}},
		{audit.TypeExit, map[string]any{"status": 137, "peaks": map[string]uint64{"memoryBytes": 5}, "usage": sampleUsage()}},
		{audit.TypeClose, struct{}{}},
		{audit.TypePromotion, map[string]any{"state": "promoted", "by": "root", "items": 2}},
	} {
		if err := w.Append(rec.kind, rec.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Read(dir, Verification{State: "intact"})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Execs) != 2 || *r.Execs[0].Status != 4 || r.Execs[1].Status != nil || r.Execs[0].Transaction != 1 {
		t.Errorf("execs %+v", r.Execs)
	}
	if len(r.Hosts) != 2 || r.Hosts[0].Refused != 4 || r.Hosts[1].BytesIn != 9 {
		t.Errorf("hosts %+v", r.Hosts)
	}
	if r.Running || *r.Status != 137 || r.Peaks.MemoryBytes != 5 || r.Limits.PIDs != 7 || len(r.Denials) != 1 || len(r.Events) != 1 || len(r.Promotions) != 2 || r.Usage == nil || len(r.Matrix) < 10 {
		t.Errorf("%+v", r)
	}
	// A log that was tampered with makes a report all the same.
	file := filepath.Join(dir, "000001.jsonl")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.Replace(data, []byte(`"status":4`), []byte(`"status":}`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Read(dir, Verification{State: "changed"}); err != nil || len(r.Events) == 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestRefused: a log without a container says why there is none; and inputs are told of.
func TestRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	w, err := audit.Open(dir, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	about := audit.Container{ID: "c", Created: time.Now().UTC(), Profile: "offline"}
	refused := struct {
		audit.Container
		What   string `json:"what"`
		Rule   string `json:"rule"`
		Caller string `json:"caller"`
	}{about, "capability SYS_ADMIN", `profile "offline"`, "conmon"}
	if err := errors.Join(w.Append(audit.TypeRefused, refused),
		w.Append(audit.TypeStart, map[string]any{"inputs": []audit.Input{{Path: "/job/<b>", SHA256: "abcd", Files: 1}}}),
		w.Append(audit.TypeClose, struct{}{}), w.Close()); err != nil {
		t.Fatal(err)
	}
	r, err := Read(dir, Verification{State: "intact"})
	if err != nil {
		t.Fatal(err)
	}
	var page, text strings.Builder
	if err := errors.Join(r.WriteHTML(&page), r.WriteMarkdown(&text)); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{page.String(), text.String()} {
		if !strings.Contains(out, "was not created") || !strings.Contains(out, "ADMIN") || !strings.Contains(out, "abcd") || strings.Contains(page.String(), "/job/<b>") {
			t.Errorf("the refusal is not told:\n%s", out)
		}
	}
}

// TestPlots: a curve is drawn to scale over the time line's time, and a series that is none is left out.
func TestPlots(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r := &Report{
		Container: audit.Container{Created: at}, Started: at.Add(time.Second), Ended: at.Add(5 * time.Second),
		Limits: profiles.Limits{CPUs: 2}, Peaks: Peaks{MemoryLimitBytes: 108, PIDsLimit: 1000},
		Usage:  &audit.Usage{EveryMillis: 1000, MemoryBytes: []uint64{54, 108, 108, 0}, CPUMillis: []int64{500, 500, 1500, 1500}, PIDs: []uint64{1, 1, 1, 1}},
		Events: []Event{{Time: at.Add(3 * time.Second), Kind: "oom", Limit: true}, {Time: at.Add(4 * time.Second), Kind: "gap"}},
	}
	got := r.plots()
	if len(got) != 3 {
		t.Fatalf("%d plots: %+v", len(got), got)
	}
	// 108 is the highest value and the limit, and 8 % are left above: 54 is at 100-50/1.08.
	if want := "M200.0 53.7H400.0V7.4H800.0V100.0H1000.0"; got[0].Line != want || got[0].Area != want+"V100H200.0Z" || got[0].Bound != "7.4" {
		t.Errorf("memory: %+v, want %s", got[0], want)
	}
	if got[1].Most != "1.00" || got[1].Limit != "of 2.00" || got[1].Bound == "" || !strings.HasPrefix(got[1].Line, "M200.0 76.9H400.0V100.0") {
		t.Errorf("processors: %+v", got[1])
	}
	if got[2].Bound != "" || got[2].Limit != "of 1000" || len(got[2].Marks) != 1 || got[2].Marks[0] != "600.0" {
		t.Errorf("processes: %+v", got[2])
	}
	if s := r.curves()[0].spark(); s != "▅██▁" {
		t.Errorf("in characters: %s", s)
	}
	for _, bad := range []audit.Usage{
		{},
		{EveryMillis: 50},
		{EveryMillis: -1, MemoryBytes: []uint64{1}, CPUMillis: []int64{1}, PIDs: []uint64{1}},
		{EveryMillis: 50, MemoryBytes: []uint64{1}, CPUMillis: []int64{1}},
		{EveryMillis: 50, MemoryBytes: make([]uint64, 5000), CPUMillis: make([]int64, 5000), PIDs: make([]uint64, 5000)},
	} {
		if usable(&bad) {
			t.Errorf("%+v is taken for a series", bad)
		}
	}
}
