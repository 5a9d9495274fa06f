package initproc

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// reportBytes is the size of one record that the child writes: an address and an errno, 64 bits each. An errno of 0
// says that a phase was reached, and the address is its number.
const reportBytes = 16

// Failure is the operation at which a child gave up.
type Failure struct { //nolint:errname // what a child reports, which is an error as well
	Index int    // in the program
	Step  string // row of the table of steps
	What  string // the operation: "mount /proc"
	Errno unix.Errno
}

// Error implements error.
func (f *Failure) Error() string { return fmt.Sprintf("%s: %v", f.What, f.Errno) }

// Unwrap makes errors.Is(err, unix.ENOENT) work.
func (f *Failure) Unwrap() error { return f.Errno }

// failure decodes a record; nil when it is none of p's.
func (p *Program) failure(record []byte) *Failure {
	if len(record) < reportBytes {
		return nil
	}
	at := binary.NativeEndian.Uint64(record)
	errno := binary.NativeEndian.Uint64(record[8:])
	index := (at - tableBase) / opBytes
	if errno == 0 || at < tableBase || index >= uint64(len(p.meta)) {
		return nil
	}
	m := p.meta[index]
	return &Failure{Index: int(index), Step: m.step, What: m.what, Errno: unix.Errno(errno)}
}
