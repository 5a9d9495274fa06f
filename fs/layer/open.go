package layer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

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

// mark is how far the commit of a noted transaction has come. It stands in a file that is there before the transaction
// begins and is written in place, as a part of one page, so that it is the old or the new one whenever the writer is killed,
// and needs no room: replacing layer.json before and after each commit cost more than the rest of one.
type mark struct {
	// Applying says that the views are being changed; Committed, that they are. Neither is said of one that is open.
	Applying  bool      `json:"applying,omitempty"`
	Committed bool      `json:"committed,omitempty"`
	Exit      *int      `json:"exit,omitempty"`
	Ended     time.Time `json:"ended"`
	Changes   int       `json:"changes"`
	Bytes     int64     `json:"bytes"`
}

const (
	markFile  = "commit.json"
	markBytes = 512
)

// writeMark writes the mark of a transaction in a directory of the container; nil is none.
func (l *Layers) writeMark(dir string, m *mark) error {
	var data []byte
	if m != nil {
		var err error
		if data, err = json.Marshal(m); err != nil {
			return fmt.Errorf("encode mark of transaction: %w", err)
		}
	}
	data = append(data, bytes.Repeat([]byte{'\n'}, markBytes-len(data))...)
	fd, err := unix.Openat(int(l.dir.Fd()), dir+"/"+markFile, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("mark transaction: %w", err)
	}
	defer unix.Close(fd)
	if n, err := unix.Pwrite(fd, data, 0); err != nil || n != len(data) {
		return fmt.Errorf("mark transaction: %w", errors.Join(err, unix.ENOSPC))
	}
	return nil
}

// takeMark completes a noted transaction by its mark, if it has one.
func (l *Layers) takeMark(tx *Transaction) error {
	fd, err := unix.Openat(int(l.dir.Fd()), tx.Dir()+"/"+markFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open mark of transaction %d: %w", tx.N, err)
	}
	defer unix.Close(fd)
	var buf [markBytes]byte
	n, err := unix.Pread(fd, buf[:], 0)
	data := bytes.TrimSpace(buf[:max(n, 0)])
	if err != nil || len(data) == 0 {
		return err
	}
	var m mark
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("decode mark of transaction %d: %w", tx.N, err)
	}
	tx.Exit, tx.Ended, tx.Changes, tx.Bytes = m.Exit, m.Ended, m.Changes, m.Bytes
	switch {
	case m.Committed:
		tx.Status = StatusCommitted
	case l.Pending == nil:
		l.Pending = &Pending{Op: opCommit, N: tx.N}
	}
	return nil
}

// markNow marks a transaction.
func (l *Layers) markNow(tx *Transaction, committed bool) error {
	return l.writeMark(tx.Dir(), &mark{Applying: !committed, Committed: committed, Exit: tx.Exit, Ended: tx.Ended, Changes: tx.Changes, Bytes: tx.Bytes})
}

// loadNotes completes the state with the transactions that run, and with those that were committed a moment ago.
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
		if note == nil {
			continue
		}
		*tx = *note
		if err := l.noted(tx); err != nil {
			return err
		}
	}
	for ; ; next++ {
		note, err := l.readNote(next)
		if err != nil || note == nil {
			return err
		}
		if err := l.noted(note); err != nil {
			return err
		}
		l.Transactions = append(l.Transactions, *note)
	}
}

// noted takes in a transaction whose note counts.
func (l *Layers) noted(tx *Transaction) error {
	l.note(tx.N)
	return l.takeMark(tx)
}

func (l *Layers) note(n int) {
	if l.notes == nil {
		l.notes = map[int]bool{}
	}
	l.notes[n] = true
}
