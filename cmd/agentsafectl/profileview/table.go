package profileview

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table is what is shown: a heading, and rows of as many cells.
type Table struct {
	Heading []string   `json:"-"`
	Rows    [][]string `json:"-"`
}

// WriteText writes aligned columns.
func (t *Table) WriteText(w io.Writer) error {
	const padding = 2
	tw := tabwriter.NewWriter(w, 0, 0, padding, ' ', 0)
	for _, row := range append([][]string{upper(t.Heading)}, t.Rows...) {
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return tw.Flush()
}

func upper(in []string) []string {
	out := make([]string, len(in))
	for i := range in {
		out[i] = strings.ToUpper(in[i])
	}
	return out
}

// WriteMarkdown writes a table of GitHub's dialect.
func (t *Table) WriteMarkdown(w io.Writer) error {
	rule := make([]string, len(t.Heading))
	for i := range rule {
		rule[i] = "---"
	}
	for _, row := range append([][]string{t.Heading, rule}, t.Rows...) {
		cells := make([]string, len(row))
		for i := range row {
			cells[i] = strings.ReplaceAll(row[i], "|", "\\|")
		}
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")); err != nil {
			return err
		}
	}
	return nil
}

// WriteJSON writes a list of objects, one for each row.
func (t *Table) WriteJSON(w io.Writer) error {
	out := make([]map[string]string, 0, len(t.Rows))
	for _, row := range t.Rows {
		object := map[string]string{}
		for i, cell := range row {
			object[t.Heading[i]] = cell
		}
		out = append(out, object)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}
