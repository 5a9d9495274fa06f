package report

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
)

// AddDiffs reads what each transaction has changed from the layers below store, if they are still there.
func (r *Report) AddDiffs(store string) error {
	if len(r.Transactions) == 0 {
		return nil
	}
	l, err := r.openLayers(store)
	if err != nil {
		for i := range r.Transactions {
			r.Transactions[i].NoDiff = "the layers of this container are gone"
		}
		if errors.Is(err, layer.ErrNotExist) {
			return nil
		}
		return err
	}
	defer l.Close()
	left := maxDiffLines
	for i := range r.Transactions {
		t := &r.Transactions[i]
		switch {
		case t.Changes == 0:
		case left <= 0:
			t.NoDiff = "left out: this report is long already (agentsafectl diff shows it)"
		default:
			if t.Diff, err = diffOf(l, t.N, left); err != nil {
				t.NoDiff = err.Error()
			}
			left -= len(t.Diff)
		}
	}
	return nil
}

// openLayers finds the layers that were made with the container of the log, whose id may have been used again.
func (r *Report) openLayers(store string) (*layer.Layers, error) {
	list, err := layer.List(store)
	if err != nil {
		return nil, err
	}
	const slack = time.Minute // layers are made a moment after the container's time of creation
	for _, i := range list {
		if since := i.Created.Sub(r.Container.Created); i.Container == r.Container.ID && since > -time.Second && since < slack {
			return layer.Open(store, i.ID)
		}
	}
	return nil, layer.ErrNotExist
}

// mark stands before each line's kind. show.Safe never writes it.
const mark = "\x01"

// diffOf is the diff of one transaction, cut at most lines.
func diffOf(l *layer.Layers, n, most int) ([]Line, error) {
	cmp, err := l.CompareRange(n, n)
	if err != nil {
		return nil, err
	}
	defer cmp.Close()
	w := &lineWriter{most: most}
	for i := range cmp.List {
		c := &cmp.List[i]
		one := show.Comparison{Old: c.Old, New: c.New, Changes: c.Changes}
		err := one.Unified(w, c.Workspace.Destination+"/", func(what, text string) string { return mark + what + mark + text })
		if err != nil && !errors.Is(err, errFull) {
			return nil, err
		}
	}
	if w.cut > 0 {
		w.lines = append(w.lines, Line{"note", fmt.Sprintf("%d lines more", w.cut)})
	}
	return w.lines, nil
}

var errFull = errors.New("enough lines")

// lineWriter takes painted lines apart.
type lineWriter struct {
	rest  []byte
	most  int
	cut   int
	lines []Line
}

// Write implements io.Writer.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		w.add(string(w.rest[:i]))
		w.rest = w.rest[i+1:]
	}
}

func (w *lineWriter) add(text string) {
	if len(w.lines) >= w.most {
		w.cut++
		return
	}
	line := Line{Text: text}
	if rest, ok := strings.CutPrefix(text, mark); ok {
		line.Kind, line.Text, _ = strings.Cut(rest, mark)
	}
	const maxLine = 2000
	if len(line.Text) > maxLine {
		line.Text = strings.ToValidUTF8(line.Text[:maxLine], "") + fmt.Sprintf(" [%d bytes more]", len(line.Text)-maxLine)
	}
	w.lines = append(w.lines, line)
}
