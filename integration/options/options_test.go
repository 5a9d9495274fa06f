package options

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var update = flag.Bool("update", false, "write the table of docs/ENGINES.md")

// TestOptions compares each row with runc, and its outcomes with docs/ENGINES.md. With -update the rows that ran are
// written there.
func TestOptions(t *testing.T) {
	rows := append(dockerRows(), podmanRows()...)
	before := readTable(t)
	// Every row is three containers or more: the short run takes a sample, and checks that the page has all rows.
	const sample = 5
	all := *update || os.Getenv("AGENTSAFE_TEST_LONG") != "" || flag.Lookup("test.run").Value.String() != ""
	t.Logf("%d rows; all of them: %t", len(rows), all)
	lines := make([]string, len(rows))
	for i := range rows {
		lines[i] = before[rows[i].key()]
	}
	t.Run("rows", func(t *testing.T) {
		for i := range rows {
			r := &rows[i]
			if !all && i%sample != 0 {
				continue
			}
			t.Run(r.engine+" "+r.option, func(t *testing.T) {
				t.Parallel()
				o := r.judge(t)
				line := fmt.Sprintf("%s %s | %s |\n", r.key(), o.none, strings.ReplaceAll(o.agent, "|", `\|`))
				if line != before[r.key()] && !*update {
					t.Errorf("docs/ENGINES.md says\n%sbut now it is\n%s(write it with -update)", before[r.key()], line)
				}
				if !t.Failed() {
					lines[i] = line
				}
			})
		}
	})
	if *update {
		writeTable(t, strings.Join(lines, ""))
	} else if len(before) != len(rows) {
		t.Errorf("docs/ENGINES.md has %d rows, there are %d", len(before), len(rows))
	}
}

// key is how the row's line in the table begins.
func (r *row) key() string { return fmt.Sprintf("| %s | %s |", r.engine, r.option) }

func marked() *regexp.Regexp {
	return regexp.MustCompile(`(?s)(<!-- table: begin -->\n\n\| engine[^\n]*\n\| ---[^\n]*\n)(.*)(\n<!-- table: end -->)`)
}

func documentFile(t *testing.T) string {
	t.Helper()
	root, err := harness.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "docs", "ENGINES.md")
}

// readTable reads the lines of docs/ENGINES.md by their keys.
func readTable(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(documentFile(t))
	if err != nil {
		t.Fatal(err)
	}
	m := marked().FindSubmatch(data)
	if m == nil {
		t.Fatal("docs/ENGINES.md has no table between its markers")
	}
	out := map[string]string{}
	for line := range strings.Lines(string(m[2])) {
		out[regexp.MustCompile(`^\| \w+ \| .*? \|`).FindString(line)] = line
	}
	return out
}

func writeTable(t *testing.T, table string) {
	t.Helper()
	data, err := os.ReadFile(documentFile(t))
	if err != nil {
		t.Fatal(err)
	}
	next := marked().ReplaceAllStringFunc(string(data), func(all string) string {
		m := marked().FindStringSubmatch(all)
		return m[1] + table + m[3]
	})
	if err := os.WriteFile(documentFile(t), []byte(next), 0o644); err != nil {
		t.Fatal(err)
	}
}
