package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/agentsafe/agentsafe/fs/layer/show"
)

// WriteJSON writes the report as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// plain escapes text for Markdown: nothing in it is markup, and it stays on one line.
func plain(unsafeText string) string {
	var b strings.Builder
	for _, c := range show.Safe(unsafeText) {
		if strings.ContainsRune("\\`*_{}[]()<>#+-!|~&@:", c) {
			b.WriteByte('\\')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// code writes text as a code span that the text can't end.
func code(unsafeText string) string {
	s := strings.ReplaceAll(show.Safe(unsafeText), "|", `\|`)
	fence := "`"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	if fence != "`" || s == "" {
		return fence + " " + s + " " + fence
	}
	return fence + s + fence
}

// WriteMarkdown writes the report in GitHub's dialect.
func (r *Report) WriteMarkdown(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# Container %s\n\n%s\n\n", code(r.Container.ID), code(command(r.Argv)))
	_, trust := r.Trust()
	fmt.Fprintf(b, "**%s** The container %s.\n\n", trust, plain(r.Verdict()))
	facts := [][]string{
		{"created", r.Container.Created.UTC().Format(time.RFC3339)},
		{"lived", spanText(r.Took())},
		{"profile", code(r.Container.Profile)},
		{"policy", code(r.Container.PolicyHash)},
		{"engine", plain(r.Container.Engine)},
		{"image", plain(r.Container.Image)},
		{"owner", plain(r.Container.Owner)},
		{"task", plain(r.Container.Task)},
	}
	for _, in := range r.Container.Inputs {
		facts = append(facts, []string{"input " + code(in.Path), code("sha256 " + in.SHA256)})
	}
	table(b, []string{"what", "value"}, facts)
	var rows [][]string
	for _, g := range r.gauges() {
		rows = append(rows, []string{g.Name, g.Used, g.Limit, g.Note})
	}
	section(b, "Limits and peaks", []string{"what", "used", "limit", ""}, rows)
	rows = nil
	for _, c := range r.curves() {
		rows = append(rows, []string{c.name, c.spark(), c.text(c.most())})
	}
	section(b, "Use over time", []string{"what", "from start to end", "at most"}, rows)
	rows = nil
	for _, e := range r.Events {
		rows = append(rows, []string{e.Time.UTC().Format(time.RFC3339), plain(e.Kind), plain(e.Text)})
	}
	section(b, "Events", []string{"time", "kind", "what"}, rows)
	rows = nil
	for i := range r.Execs {
		e := &r.Execs[i]
		rows = append(rows, []string{code(command(e.Argv)), e.Start.UTC().Format(time.RFC3339), e.Took(), e.StatusText()})
	}
	section(b, "Processes", []string{"command", "started", "took", "end"}, rows)
	r.writeTransactions(b)
	rows = nil
	for _, h := range r.Hosts {
		why := h.Rule
		if h.Reason != "" {
			why = h.Reason
		}
		rows = append(rows, []string{code(hostText(h)), fmt.Sprint(h.Allowed), fmt.Sprint(h.Refused), bytesText(h.BytesOut), bytesText(h.BytesIn), plain(why)})
	}
	section(b, "Network", []string{"destination", "allowed", "refused", "sent", "received", "why"}, rows)
	rows = nil
	for _, d := range r.Denials {
		rows = append(rows, []string{code(d.Rule), plain(d.Text)})
	}
	section(b, "Denials", []string{"rule", "what"}, rows)
	rows = nil
	for _, m := range r.Matrix {
		rows = append(rows, []string{plain(m[0]), plain(m[1])})
	}
	section(b, "What the profile grants", []string{"what", "value"}, rows)
	v := &r.Verification
	section(b, "Evidence", []string{"what", "value"}, [][]string{
		{"log", code(r.Log)},
		{"records", fmt.Sprintf("%d, %s", v.Records, v.State)},
		{"gaps", fmt.Sprint(v.Gaps)},
		{"signature", plain(v.Signature + " " + v.Note)},
		{"head", code(v.Head)},
	})
	for _, f := range v.Findings {
		fmt.Fprintf(b, "- %s\n", plain(f))
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *Report) writeTransactions(b *bufio.Writer) {
	for i := range r.Transactions {
		t := &r.Transactions[i]
		if i == 0 {
			fmt.Fprint(b, "\n## Changes to the workspace\n")
		}
		fmt.Fprintf(b, "\n### Transaction %d: %s, %d changes\n\n", t.N, plain(string(t.Status)), t.Changes)
		for _, c := range t.Conflicts {
			fmt.Fprintf(b, "- conflict: %s: %s\n", code(path.Join(c.Workspace, c.Path)), plain(c.Reason))
		}
		if len(t.Diff) > 0 {
			// Indented, so that nothing in it can end the block.
			for _, l := range t.Diff {
				fmt.Fprintf(b, "    %s\n", show.Safe(l.Text))
			}
		} else if t.NoDiff != "" {
			fmt.Fprintf(b, "%s\n", plain(t.NoDiff))
		}
	}
}

func section(b *bufio.Writer, title string, heading []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n", title)
	table(b, heading, rows)
}

func table(b *bufio.Writer, heading []string, rows [][]string) {
	rule := make([]string, len(heading))
	for i := range rule {
		rule[i] = "---"
	}
	for _, row := range append([][]string{heading, rule}, rows...) {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
}
