package layer

import (
	"bytes"
	"io"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// Merge makes one text of two that came from a third; false if they contradict each other, or are no texts.
type Merge func(base, task, host []byte) ([]byte, bool)

// maxMerge bounds what is merged.
const maxMerge = 1 << 20

// merge resolves a conflict with the host where the two have changed different lines. What the file was when the task
// began is known if a transaction was the first to change it; the text that was merged is promoted in the place of the
// task's.
func (l *Layers) merge(i *Item, upper, host tree.Root) error {
	if l.Merge == nil || i.Op != tree.Modify || i.Kind != tree.File || i.Was != tree.File {
		return nil
	}
	base, ok, err := l.original(i)
	if err != nil || !ok {
		return err
	}
	var texts [2][]byte
	for n, r := range []tree.Root{upper, host} {
		if texts[n], err = readText(r, i.Path); err != nil || texts[n] == nil {
			return err
		}
	}
	merged, ok := l.Merge(base, texts[0], texts[1])
	switch {
	case ok && bytes.Equal(merged, texts[1]):
		i.Conflict, i.Left = "", "the host's file has these changes already"
	case ok:
		i.Conflict, i.Merged, i.merged = "", true, merged
	}
	return nil
}

// original returns what a file was before the first transaction that changed it; false if that is not what the host had
// when the task began.
func (l *Layers) original(i *Item) (data []byte, ok bool, err error) {
	for n := range l.Transactions {
		tx := &l.Transactions[n]
		if tx.Changes == 0 || tx.Status != StatusCommitted && tx.Status != StatusUndone {
			continue
		}
		undo, closeUndo, err := l.upper(i.w, txUndo(tx.N, i.w))
		if err != nil {
			return nil, false, err
		}
		defer closeUndo()
		st, err := undo.Lstat(i.Path)
		if tree.Missing(err) {
			continue
		}
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mtim.Nano() > i.w.Since {
			return nil, false, err
		}
		data, err = readText(undo, i.Path)
		return data, data != nil, err
	}
	return nil, false, nil
}

// readText reads a file; nil if it is larger than what is merged.
func readText(r tree.Root, unsafePath string) ([]byte, error) {
	f, err := r.OpenFile(unsafePath)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxMerge+1))
	if err != nil || len(data) > maxMerge {
		return nil, err
	}
	if data == nil {
		data = []byte{}
	}
	return data, nil
}
