package layer

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"
)

// An exec reads and writes layer.json several times, and a container has a thousand execs: their log would cost each of
// them more than all else. So what was decided on long ago lies in history.json, which is written once for many execs and
// read by those who look at the log. layer.json is the truth all the same: a transaction that stands in both is as it
// says, so one that is undone moves back, and a crash between the two writes loses nothing.

const historyFile = "history.json"

// maxRecent is how many transactions layer.json may hold before keptRecent of them stay.
const (
	maxRecent  = 64
	keptRecent = 16
)

// loadHistory completes the log.
func (l *Layers) loadHistory() error {
	if l.older != nil || l.ArchivedTo == 0 {
		return nil
	}
	fd, err := unix.Openat(int(l.dir.Fd()), historyFile, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", historyFile, err)
	}
	f := os.NewFile(uintptr(fd), historyFile)
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("read %s: %w", historyFile, err)
	}
	var list []Transaction
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("decode %s: %w", historyFile, err)
	}
	l.older = map[int]Transaction{}
	recent := map[int]bool{}
	for i := range l.Transactions {
		recent[l.Transactions[i].N] = true
	}
	for i := range list {
		// Beyond ArchivedTo is what was written before a crash, and stands in layer.json.
		if n := list[i].N; n <= l.ArchivedTo {
			l.older[n] = list[i]
			if !recent[n] {
				l.Transactions = append(l.Transactions, list[i])
			}
		}
	}
	slices.SortFunc(l.Transactions, func(a, b Transaction) int { return a.N - b.N })
	return nil
}

// recent returns what layer.json has to hold: all that history.json does not say in the same words.
func (l *Layers) recent() []Transaction {
	if l.older == nil {
		return l.Transactions
	}
	var out []Transaction
	for i := range l.Transactions {
		if old, ok := l.older[l.Transactions[i].N]; !ok || !reflect.DeepEqual(old, l.Transactions[i]) {
			out = append(out, l.Transactions[i])
		}
	}
	return out
}

// archive moves what was decided on long ago to history.json. What may still be compared with a transaction that runs
// stays. Pointers into Transactions don't survive it.
func (l *Layers) archive() error {
	recent := l.recent()
	if len(recent) <= maxRecent {
		return nil
	}
	move := recent[:len(recent)-keptRecent]
	for i := range recent {
		if recent[i].Status == StatusOpen {
			open := recent[i].Started
			move = slices.DeleteFunc(slices.Clone(move), func(tx Transaction) bool {
				return tx.Status == StatusOpen || !tx.Ended.Before(open)
			})
			break
		}
	}
	if len(move) < keptRecent {
		return nil
	}
	if err := l.loadHistory(); err != nil {
		return err
	}
	l.forget()
	to := move[len(move)-1].N
	moved := map[int]bool{}
	for i := range move {
		moved[move[i].N] = true
	}
	older := map[int]Transaction{}
	var list []Transaction
	for i := range l.Transactions {
		tx := l.Transactions[i]
		_, old := l.older[tx.N]
		if old || moved[tx.N] {
			older[tx.N] = tx
			list = append(list, tx)
		}
	}
	if err := writeFile(l.dir, historyFile, list); err != nil {
		return err
	}
	l.older, l.ArchivedTo = older, max(to, l.ArchivedTo)
	return nil
}
