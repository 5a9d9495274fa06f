package ui

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	tea "charm.land/bubbletea/v2"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// View implements tea.Model.
func (m *Model) View() tea.View {
	v := tea.NewView(m.text())
	v.AltScreen = true
	return v
}

// body is how many lines stand between the title and the last two.
func (m *Model) body() int { return max(1, m.height-3) }

func (m *Model) text() string {
	var title, keys string
	var lines []string
	switch m.screen {
	case logScreen:
		title, keys = "container "+show.SafeName(m.id), "up/down  enter: diff  u: undo/redo  p: promote  r: reload  q: quit"
		lines = m.logLines()
	case diffScreen:
		title, keys = m.title, "up/down, pgup/pgdown, g/G  q: back"
		lines = m.diff[min(m.scroll, len(m.diff)):]
	case promoteScreen:
		title, keys = "promote to the host", "space: choose  n: none  enter: diff  P: promote  q: back"
		lines = m.itemLines()
	}
	var b strings.Builder
	b.WriteString(m.paint("1", cut(title, m.width)) + "\n")
	for i := range m.body() {
		if i < len(lines) {
			b.WriteString(cut(lines[i], m.width))
		}
		b.WriteString("\n")
	}
	last := m.message
	if m.asking != "" {
		last = m.asking
	}
	b.WriteString(m.paint("33", cut(show.Safe(strings.ReplaceAll(last, "\n", " ")), m.width)) + "\n" + m.paint("2", cut(keys, m.width)))
	return b.String()
}

func (m *Model) paint(code, text string) string {
	if !m.colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// window returns the part of a list of n lines that shows line at.
func (m *Model) window(n, at int) (from, to int) {
	from = max(0, min(at-m.body()/2, n-m.body()))
	return from, min(n, from+m.body())
}

func (m *Model) logLines() []string {
	rows := []string{"everything, against the host"}
	for i := len(m.log) - 1; i >= 0; i-- {
		t := &m.log[i]
		exit := "-"
		if t.Exit != nil {
			exit = fmt.Sprint(*t.Exit)
		}
		rows = append(rows, fmt.Sprintf("%4d  %s  %-9s  exit %-3s  %4d changes  %s", t.N, t.Started.Local().Format("15:04:05"), t.Status, exit, t.Changes, command(t)))
	}
	return m.marked(rows, m.cursor)
}

func (m *Model) itemLines() []string {
	rows := make([]string, len(m.items))
	for i := range m.items {
		it := &m.items[i]
		box := "[ ]"
		if m.chosen[i] {
			box = "[x]"
		}
		rows[i] = fmt.Sprintf("%s %-6s %s", box, it.Op, name(it))
		switch {
		case it.Conflict != "":
			rows[i] += "  conflict: " + it.Conflict
		case it.Flag != "":
			rows[i] += "  attention: " + it.Flag
		}
	}
	return m.marked(rows, m.item)
}

// marked returns the visible rows with a mark at one.
func (m *Model) marked(rows []string, at int) []string {
	from, to := m.window(len(rows), at)
	var out []string
	for i := from; i < to; i++ {
		if i == at {
			out = append(out, m.paint("7", "> "+rows[i]))
			continue
		}
		out = append(out, "  "+rows[i])
	}
	return out
}

func command(t *layer.Transaction) string { return show.SafeName(strings.Join(t.Command, " ")) }

func name(i *layer.Item) string { return show.SafeName(i.Workspace + "/" + i.Path) }

// colours are the sequences that our own painter makes; nothing else in a line can be one.
var colours = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("\x1b\\[[0-9]*m") }) //nolint:gochecknoglobals // a constant

// plain is a line without our colours.
func plain(line string) string { return colours().ReplaceAllString(line, "") }

// isHead reports whether a line of a diff begins another path: an operation and a kind.
func isHead(line string) bool {
	word, _, _ := strings.Cut(plain(line), " ")
	switch tree.Op(word) {
	case tree.Add, tree.Modify, tree.Delete, tree.Meta:
		return true
	default:
		return false
	}
}

// cut shortens a line to a width, in characters, with the colours that are in it.
func cut(line string, width int) string {
	var b strings.Builder
	n, coloured := 0, false
	for line != "" {
		if at := colours().FindStringIndex(line); at != nil && at[0] == 0 {
			b.WriteString(line[:at[1]])
			line, coloured = line[at[1]:], true
			continue
		}
		r := []rune(line[:min(len(line), 4)])[0]
		text := string(r)
		if r == '\t' {
			text = "    "
		}
		if n += len([]rune(text)); n > width {
			break
		}
		b.WriteString(text)
		line = line[len(string(r)):]
	}
	if coloured {
		b.WriteString("\x1b[0m")
	}
	return b.String()
}
