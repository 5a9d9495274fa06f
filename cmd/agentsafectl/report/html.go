package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"net"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/agentsafe/agentsafe/fs/layer/show"
)

//go:embed page.html
var pageText string

// WriteHTML writes one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"safe": show.Safe, "name": show.SafeName, "command": command, "bytes": bytesText, "span": spanText,
		"clock": func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
		"day":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
		"short": func(n int, s string) string { return s[:min(n, len(s))] },
		"host":  func(h Host) string { return hostText(h) },
		"path":  path.Join,
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("parse page: %w", err)
	}
	if err := t.Execute(w, newPage(r)); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// page is what the template sees.
type page struct {
	*Report
	Timeline []bar
	Plots    []plot
	Gauges   []gauge
	Changing []Transaction // those that have changed something, or would have
	Idle     int           // the others
}

// isChange says that there is something to show of a transaction.
func (t *Transaction) isChange() bool { return t.Changes > 0 || t.Reason != "" || len(t.Conflicts) > 0 }

// newPage lays a report out.
func newPage(r *Report) *page {
	p := &page{Report: r, Timeline: r.timeline(), Plots: r.plots(), Gauges: r.gauges()}
	shown := map[int]bool{}
	for _, t := range r.Transactions {
		if t.isChange() {
			p.Changing, shown[t.N] = append(p.Changing, t), true
		} else {
			p.Idle++
		}
	}
	for i := range r.Execs {
		r.Execs[i].Shown = shown[r.Execs[i].Transaction]
	}
	return p
}

// Verdict is one line about how it ended.
func (r *Report) Verdict() string {
	switch {
	case r.Refused:
		return "was not created: its profile refuses what was asked for"
	case r.Running:
		return "still running, or its supervisor did not finish"
	case r.End != nil && r.End.Reason != "":
		return r.End.Message
	case r.Status == nil || *r.Status == -1:
		return "ended; its exit status is not known"
	case *r.Status == 0:
		return "ended with status 0"
	}
	return fmt.Sprintf("ended with status %d", *r.Status)
}

// Trust is one line about the log.
func (r *Report) Trust() (class, text string) {
	v := &r.Verification
	switch {
	case v.State != "intact":
		return "bad", "The log was changed after it was written."
	case v.Signature == "bad":
		return "bad", "The signature of the statement is wrong."
	case v.Signature == "missing":
		return "bad", "The statement that was to follow the log is missing."
	case v.Signature == "good" && v.Gaps == 0 && v.Closed:
		return "good", "The log is intact, complete and signed."
	case v.Signature == "good":
		return "warn", "The log is intact and signed, but not without gaps."
	}
	return "warn", "The log is intact, and not signed: it can't be told from one that was cut or rewritten whole."
}

// TrustClass and TrustText are Trust's two answers, for the template.
func (r *Report) TrustClass() string { c, _ := r.Trust(); return c }

// TrustText is the other half of Trust.
func (r *Report) TrustText() string { _, t := r.Trust(); return t }

// Took is how long the container lived.
func (r *Report) Took() time.Duration { return max(0, r.Ended.Sub(r.begin())) }

func (r *Report) begin() time.Time {
	if r.Started.IsZero() {
		return r.Container.Created
	}
	return r.Started
}

// bar is a row of the time line; positions are in percent.
type bar struct {
	Label, Note, Class string
	Left, Width        string
}

// maxBars bounds the time line; the table of processes has them all.
const maxBars = 200

func (r *Report) timeline() []bar {
	begin, whole := r.Container.Created, r.Ended.Sub(r.Container.Created)
	if begin.IsZero() || whole <= 0 {
		return nil
	}
	place := func(from, to time.Time) (string, string) {
		left := 100 * float64(from.Sub(begin)) / float64(whole)
		width := 100 * float64(to.Sub(from)) / float64(whole)
		const least = 0.4 // so that it can be seen
		left = min(max(left, 0), 100-least)
		width = min(max(width, least), 100-left)
		return strconv.FormatFloat(left, 'f', 3, 64) + "%", strconv.FormatFloat(width, 'f', 3, 64) + "%"
	}
	first := bar{Label: command(r.Argv), Note: spanText(r.Took()), Class: "whole"}
	first.Left, first.Width = place(r.begin(), r.Ended)
	out := []bar{first}
	for i := range r.Execs {
		if len(out) > maxBars {
			break
		}
		e := &r.Execs[i]
		b := bar{Label: command(e.Argv), Note: "no end in the log", Class: e.Class()}
		end := e.End
		if end.IsZero() {
			end = r.Ended
		} else {
			b.Note = spanText(e.End.Sub(e.Start)) + ", " + e.StatusText()
		}
		b.Left, b.Width = place(e.Start, end)
		out = append(out, b)
	}
	return out
}

// Class is a word for the colour of a process.
func (e *Exec) Class() string {
	switch {
	case e.TimedOut:
		return "late"
	case e.Status == nil || *e.Status == -1:
		return "unknown"
	case *e.Status != 0:
		return "failed"
	}
	return "fine"
}

// StatusText says how a process ended.
func (e *Exec) StatusText() string {
	switch {
	case e.TimedOut:
		return "timed out"
	case e.Status == nil:
		return "no end in the log"
	case *e.Status == -1:
		return "status unknown"
	}
	return "status " + strconv.Itoa(*e.Status)
}

// Took is how long a process ran.
func (e *Exec) Took() string {
	if e.End.IsZero() {
		return "-"
	}
	return spanText(e.End.Sub(e.Start))
}

// gauge is a use beside its limit.
type gauge struct {
	Name, Used, Limit, Note, Class, Width string
}

func (r *Report) gauges() []gauge {
	l, p := &r.Limits, &r.Peaks
	var in, out int64
	for _, h := range r.Hosts {
		in, out = in+h.BytesIn, out+h.BytesOut
	}
	var layers int64
	for i := range r.Transactions {
		layers += r.Transactions[i].Bytes
	}
	list := []gauge{
		measure("memory, at most", float64(p.MemoryBytes), r.memoryLimit(), bytesOf),
		measure("processor time", float64(p.CPUNanoseconds), float64(l.CPUTime), spanOf),
		measure("wall clock", float64(r.Took()), float64(l.WallClock), spanOf),
		measure("processes, at most", float64(p.PIDsPeak), r.pidsLimit(), countOf),
	}
	if in+out > 0 || l.EgressBytes > 0 {
		list = append(list, measure("bytes sent", float64(out), float64(l.EgressBytes), bytesOf), measure("bytes received", float64(in), 0, bytesOf))
	}
	if layers > 0 || l.LayerBytes > 0 {
		list = append(list, measure("written by execs", float64(layers), float64(l.LayerBytes), bytesOf))
	}
	if r.End != nil {
		list[0].Note = countNote(r.End.OOMKills, "processes were ended for want of memory")
		list[3].Note = countNote(r.End.PIDsRefused, "forks were refused")
	}
	return list
}

// memoryLimit is in bytes, 0 for none.
func (r *Report) memoryLimit() float64 {
	const none = 1 << 62 // what the kernel says is about as much, or more
	if limit := r.Peaks.MemoryLimitBytes; limit < none {
		return float64(limit)
	}
	return 0
}

// pidsLimit is 0 for none.
func (r *Report) pidsLimit() float64 {
	return float64(max(uint64(max(r.Limits.PIDs, 0)), r.Peaks.PIDsLimit)) //nolint:gosec // limits fit
}

func countNote(n uint64, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, what)
}

func bytesOf(v float64) string { return bytesText(int64(v)) }
func spanOf(v float64) string  { return spanText(time.Duration(v)) }
func countOf(v float64) string { return strconv.FormatInt(int64(v), 10) }

// measure makes a gauge; a use of 0 is unknown, a limit of 0 none.
func measure(name string, used, limit float64, text func(float64) string) gauge {
	g := gauge{Name: name, Used: "not known", Limit: "no limit", Class: "open", Width: "0%"}
	if used > 0 {
		g.Used = text(used)
	}
	if limit > 0 {
		g.Limit = "of " + text(limit)
		share := min(used/limit, 1)
		g.Width = strconv.FormatFloat(100*share, 'f', 2, 64) + "%"
		const tight = 0.9
		g.Class = "fine"
		if share >= tight {
			g.Class = "full"
		}
	}
	return g
}

// command is a command line on one line, cut.
func command(argv []string) string {
	const width = 300
	s := show.SafeName(strings.ReplaceAll(strings.Join(argv, " "), "\n", "↵ "))
	if len(s) > width {
		s = strings.ToValidUTF8(s[:width], "") + " ..."
	}
	return s
}

func hostText(h Host) string {
	name := show.SafeName(h.Name)
	if h.Port == 0 {
		return name
	}
	return net.JoinHostPort(name, strconv.Itoa(int(h.Port)))
}

// bytesText writes a size for people.
func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, at := float64(n)/unit, 0
	for value >= unit && at < 3 {
		value, at = value/unit, at+1
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGT"[at])
}

// spanText writes a time span for people.
func spanText(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}
