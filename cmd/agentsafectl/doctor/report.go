package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Status is a row's verdict.
type Status string

// The verdicts. A row that is Required and Missing means that the agent profile
// can't be enforced here.
const (
	OK       Status = "ok"
	Degraded Status = "degraded"
	Missing  Status = "missing"
)

// Row is one thing that was looked at.
type Row struct {
	Check    string `json:"check"`
	Status   Status `json:"status"`
	Required bool   `json:"required"` // by the agent profile
	Detail   string `json:"detail"`
	Advice   string `json:"advice,omitempty"` // what to do, if anything
}

// Report is the whole finding.
type Report struct {
	Kernel      string `json:"kernel"`
	Enforceable bool   `json:"agentProfileEnforceable"`
	Rows        []Row  `json:"rows"`
}

// WriteJSON prints the report as one indented JSON document.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// WriteTable prints the report for people: an aligned table, then what to do.
func (r *Report) WriteTable(w io.Writer, colour bool) error {
	var b strings.Builder
	checkWidth := 0
	for _, row := range r.Rows {
		checkWidth = max(checkWidth, len(row.Check))
	}
	const statusWidth = len(Degraded)
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "%-*s  %s%s  %s\n", checkWidth, row.Check,
			paint(row.Status, colour), strings.Repeat(" ", statusWidth-len(row.Status)), row.Detail)
	}
	heading := "\nWhat to do:\n"
	for _, row := range r.Rows {
		if row.Advice == "" {
			continue
		}
		b.WriteString(heading)
		heading = ""
		fmt.Fprintf(&b, "  %s: %s\n", row.Check, strings.ReplaceAll(row.Advice, "\n", "\n      "))
	}
	verdict := "\nThe agent profile can be enforced on this host.\n"
	if !r.Enforceable {
		verdict = "\nThe agent profile can NOT be enforced on this host: see the rows marked missing.\n"
	}
	b.WriteString(verdict)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func paint(s Status, colour bool) string {
	if !colour {
		return string(s)
	}
	code := map[Status]string{OK: "32", Degraded: "33", Missing: "31"}[s]
	return "\x1b[" + code + "m" + string(s) + "\x1b[0m"
}
