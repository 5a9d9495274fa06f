package layer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A transaction that runs is noted in a file of its own directory, which is made before it begins: replacing layer.json
// costs more than all else that beginning does. Its directory's name is what makes it known, in one rename. Whoever opens
// the layers finds it, since numbers are given one after the other; once it is decided on, layer.json has it and the file
// counts no more.

// noteFile is that file; noteSlack is room for the numbers that are written into it later, in place: a note that grew could
// meet a full disk.
const (
	noteFile  = "note.json"
	noteSlack = 512
)

// writeNote writes the note of a transaction in a directory of the container.
func (l *Layers) writeNote(dir string, tx *Transaction) error {
	data, err := json.Marshal(tx)
	if err != nil {
		return fmt.Errorf("encode transaction: %w", err)
	}
	fd, err := unix.Openat(int(l.dir.Fd()), dir+"/"+noteFile, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("note transaction: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("note transaction: %w", err)
	}
	size := max(int(st.Size), len(data)+noteSlack)
	if st.Size > 0 {
		size = max(int(st.Size), len(data))
	}
	for len(data) < size {
		data = append(data, '\n')
	}
	if n, err := unix.Pwrite(fd, data, 0); err != nil || n != len(data) {
		return fmt.Errorf("note transaction: %w", errors.Join(err, unix.ENOSPC))
	}
	return nil
}

// readNote reads the note of a transaction; nil if there is none.
func (l *Layers) readNote(n int) (*Transaction, error) {
	fd, err := unix.Openat(int(l.dir.Fd()), txDir(n)+"/"+noteFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err != nil {
		return nil, fmt.Errorf("open note of transaction %d: %w", n, err)
	}
	f := os.NewFile(uintptr(fd), noteFile)
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read note of transaction %d: %w", n, err)
	}
	var tx Transaction
	if err := json.Unmarshal(data, &tx); err != nil {
		return nil, fmt.Errorf("decode note of transaction %d: %w", n, err)
	}
	if tx.N = n; tx.Status != StatusOpen {
		return nil, nil //nolint:nilnil // not one of ours
	}
	return &tx, nil
}

// loadNotes completes the state with the transactions that run.
func (l *Layers) loadNotes() error {
	next := l.ArchivedTo + 1
	for i := range l.Transactions {
		tx := &l.Transactions[i]
		next = max(next, tx.N+1)
		if tx.Status != StatusOpen {
			continue
		}
		note, err := l.readNote(tx.N)
		if err != nil {
			return err
		}
		if note != nil {
			*tx = *note
		}
	}
	for ; ; next++ {
		note, err := l.readNote(next)
		if err != nil || note == nil {
			return err
		}
		l.Transactions = append(l.Transactions, *note)
	}
}
