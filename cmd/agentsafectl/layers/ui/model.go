package ui

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// Actions are what the interface can do. Errors are shown; they end nothing.
type Actions struct {
	Log func() ([]layer.Transaction, error)
	// Diff is that of one transaction, or with 0 of everything against the host, as safe lines that may be coloured.
	Diff func(n int) ([]string, error)
	// Turn takes a committed transaction back, or applies one again that was taken back.
	Turn func(n int, undo bool) error
	Plan func() ([]layer.Item, error)
	// Promote writes paths of the container to the host and says what was done.
	Promote func(paths []string) (string, error)
}

type screen int

const (
	logScreen screen = iota
	diffScreen
	promoteScreen
)

// Model is the state of the interface. It is a tea.Model; Run makes and runs one.
type Model struct {
	id      string
	actions Actions
	colour  bool

	screen        screen
	width, height int
	message       string
	asking        string // a question that y answers

	log    []layer.Transaction
	cursor int // in the log: 0 is everything, then the newest transaction

	title  string
	diff   []string
	scroll int
	from   screen // where the diff was opened

	items  []layer.Item
	chosen map[int]bool
	item   int
}

// New returns the interface for a container's layers.
func New(id string, a Actions, colour bool) (*Model, error) {
	m := &Model{id: id, actions: a, colour: colour, width: 80, height: 24}
	var err error
	m.log, err = a.Log()
	return m, err
}

// Run shows the interface until the person leaves it.
func Run(m *Model) error {
	_, err := tea.NewProgram(m).Run()
	return err
}

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		if m.press(msg.String()) {
			return m, tea.Quit
		}
	}
	return m, nil
}

// press acts on a key; it reports whether that ends the interface.
func (m *Model) press(key string) (quit bool) {
	if key == "ctrl+c" {
		return true
	}
	if m.asking != "" {
		m.asking = ""
		if key == "y" {
			m.promote()
		} else {
			m.message = "nothing was written"
		}
		return false
	}
	m.message = ""
	switch m.screen {
	case logScreen:
		return m.pressLog(key)
	case diffScreen:
		m.pressDiff(key)
	case promoteScreen:
		m.pressPromote(key)
	}
	return false
}

// move changes a position by a key; it reports whether it is such a key.
func move(key string, at *int, count, page int) bool {
	step := map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -page, "b": -page, "pgdown": page, "f": page, "g": -count, "home": -count, "G": count, "end": count}
	n, ok := step[key]
	if ok {
		*at = max(0, min(*at+n, count-1))
	}
	return ok
}

func (m *Model) fail(err error) bool {
	if err != nil {
		m.message = err.Error()
	}
	return err != nil
}

// selected is the transaction at the cursor; nil for everything.
func (m *Model) selected() *layer.Transaction {
	if m.cursor == 0 {
		return nil
	}
	return &m.log[len(m.log)-m.cursor]
}

func (m *Model) pressLog(key string) (quit bool) {
	if move(key, &m.cursor, len(m.log)+1, m.body()) {
		return false
	}
	switch key {
	case "q", "esc":
		return true
	case "enter", "right", "l", "d":
		m.openDiff()
	case "u":
		m.turn()
	case "r":
		m.reload()
	case "p":
		m.openPromotion()
	}
	return false
}

func (m *Model) openDiff() {
	n, title := 0, "everything, against the host"
	if tx := m.selected(); tx != nil {
		n, title = tx.N, fmt.Sprintf("transaction %d: %s", tx.N, command(tx))
	}
	lines, err := m.actions.Diff(n)
	if m.fail(err) {
		return
	}
	m.show(title, lines)
}

func (m *Model) show(title string, lines []string) {
	if len(lines) == 0 {
		lines = []string{"nothing has changed"}
	}
	m.title, m.diff, m.scroll, m.from, m.screen = title, lines, 0, m.screen, diffScreen
}

func (m *Model) turn() {
	tx := m.selected()
	if tx == nil || tx.Status != layer.StatusCommitted && tx.Status != layer.StatusUndone && tx.Status != layer.StatusFailed {
		m.message = "choose a transaction that is committed or undone"
		return
	}
	undo := tx.Status == layer.StatusCommitted
	n := tx.N
	err := m.actions.Turn(n, undo)
	m.reload()
	if m.fail(err) {
		return
	}
	m.message = fmt.Sprintf("transaction %d is committed again", n)
	if undo {
		m.message = fmt.Sprintf("transaction %d is undone", n)
	}
}

func (m *Model) reload() {
	list, err := m.actions.Log()
	if m.fail(err) {
		return
	}
	m.log = list
	m.cursor = min(m.cursor, len(list))
}

func (m *Model) pressDiff(key string) {
	if move(key, &m.scroll, max(1, len(m.diff)-m.body()+1), m.body()) {
		return
	}
	if key == "q" || key == "esc" || key == "left" || key == "h" {
		m.screen = m.from
	}
}

func (m *Model) openPromotion() {
	items, err := m.actions.Plan()
	if m.fail(err) {
		return
	}
	m.items, m.chosen, m.item = nil, map[int]bool{}, 0
	for _, i := range items {
		// A directory comes with what is in it, and what is never promoted can't be chosen.
		if i.Kind == tree.Dir && i.Op != tree.Delete || i.Left != "" && i.Flag == "" {
			continue
		}
		m.items = append(m.items, i)
		m.chosen[len(m.items)-1] = i.Flag == "" && i.Conflict == ""
	}
	if len(m.items) == 0 {
		m.message = "there is nothing to promote"
		return
	}
	m.screen = promoteScreen
}

func (m *Model) pressPromote(key string) {
	if move(key, &m.item, len(m.items), m.body()) {
		return
	}
	switch key {
	case "q", "esc":
		m.screen = logScreen
	case "space", "x":
		if m.items[m.item].Conflict != "" {
			m.message = "the host has changed it: agentsafectl promote --merge can bring the two together"
			return
		}
		m.chosen[m.item] = !m.chosen[m.item]
	case "n":
		clear(m.chosen)
	case "enter", "right", "l", "d":
		m.openItem()
	case "P":
		if n := len(m.paths()); n > 0 {
			m.asking = fmt.Sprintf("write %d paths to the host? [y/N]", n)
		} else {
			m.message = "nothing is chosen"
		}
	}
}

// openItem shows the part of the whole diff that is about one path.
func (m *Model) openItem() {
	lines, err := m.actions.Diff(0)
	if m.fail(err) {
		return
	}
	name := name(&m.items[m.item])
	var part []string
	for _, l := range lines {
		head := !strings.HasPrefix(plain(l), "+") && !strings.HasPrefix(plain(l), "-") && strings.Contains(l, name)
		switch {
		case part == nil && head:
			part = append(part, l)
		case part != nil && isHead(l):
			m.show(name, part)
			return
		case part != nil:
			part = append(part, l)
		}
	}
	m.show(name, part)
}

func (m *Model) paths() []string {
	var out []string
	for i := range m.items {
		if m.chosen[i] {
			out = append(out, m.items[i].Workspace+"/"+m.items[i].Path)
		}
	}
	return out
}

func (m *Model) promote() {
	text, err := m.actions.Promote(m.paths())
	if m.fail(err) {
		return
	}
	m.screen = logScreen
	m.reload()
	m.message = text
}
