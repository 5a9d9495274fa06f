package initproc

import (
	"encoding/binary"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Program is an ordered table of system calls that a child performs between clone and execve. It is data: it can be
// printed and compared. Use newProgram; the zero value has no report cell.
//
// Operations are encoded as they are appended, in the form that vm_*.s reads: the table of a container has some 700, and
// a process that lives for ten milliseconds pays for every page that it touches.
type Program struct {
	table []byte // opBytes each
	meta  []opMeta
	ro    []byte
	rw    []byte
	step  string
	strs  map[string]Arg
}

// opMeta is what the child does not need of an operation.
type opMeta struct {
	step, what string // row of the table of steps; what a person calls it, for errors: "mount /proc"
	ok, other  *Label // where to go next; nil is the op that follows
}

// op is one operation that was appended: a system call, or a check of memory (opCheck).
type op struct {
	p *Program
	i int
}

// Offsets in an encoded operation.
const (
	offNumber   = 0  // int64
	offArgs     = 8  // 6 x uint64
	offDst      = 56 // address for the result as 32 bits; 0 is nowhere
	offCells    = 64 // bit n: argument n is the address of a cell
	offFlags    = 65
	offOK       = 68 // index of the next operation
	offOther    = 72 // index after a tolerated error or an unexpected result
	offWant     = 80 // with flagExpect: the only good result
	offTolerate = 88 // up to 8 errnos
)

const (
	opBytes    = 96
	opCheck    = -1
	flagExpect = 1 // the result must equal want
	flagJump   = 2 // on a different result go to other instead of failing
	flagAgain  = 4 // on EAGAIN do it again
	anyErrno   = 255
)

// Arg is an argument of a system call: a constant, the value of a Cell, or the address of data of the program.
type Arg struct {
	kind  argKind
	value uint64
}

type argKind uint8

const (
	argConst argKind = iota
	argCell          // value is the address of a cell; its 32 bits, sign-extended, are what is passed
	argRO            // value is an offset in the read-only data
	argRW            // value is an offset in the writable data
)

// Cell is 32 bits of the child's memory that hold a file descriptor or another small result.
type Cell uint32

// Label is a place in a program that an op can go on at.
type Label struct{ at int }

// reportCell holds the descriptor that failures are written to; its place is fixed, see vm_*.s.
const reportCell Cell = 16

func newProgram(report int) *Program {
	const usual = 1024 // more than is used costs nothing: nobody touches the pages
	p := &Program{
		table: make([]byte, 0, usual*opBytes),
		meta:  make([]opMeta, 0, usual),
		ro:    make([]byte, 0, 24<<10),
		rw:    make([]byte, 24, 8<<10),
		strs:  make(map[string]Arg, 128),
	}
	binary.NativeEndian.PutUint32(p.rw[reportCell:], uint32(report))
	return p
}

func imm(v int) Arg { return Arg{value: uint64(v)} } //nolint:gosec // the kernel takes the bits

func imm64(v uint64) Arg { return Arg{value: v} }

func val(c Cell) Arg { return Arg{kind: argCell, value: uint64(c)} }

// cell reserves a Cell that starts as v.
func (p *Program) cell(v int) Cell {
	at := len(p.rw)
	p.rw = binary.NativeEndian.AppendUint32(p.rw, uint32(int32(v))) //nolint:gosec // descriptors fit
	return Cell(at)
}

// str puts a NUL-terminated string into the program, once.
func (p *Program) str(s string) Arg {
	if a, known := p.strs[s]; known {
		return a
	}
	a := Arg{kind: argRO, value: uint64(len(p.ro))}
	p.ro = append(append(p.ro, s...), 0)
	p.strs[s] = a
	return a
}

// bytes puts read-only data into the program, 8-byte aligned.
func (p *Program) bytes(b []byte) Arg {
	p.ro = align8(p.ro)
	a := Arg{kind: argRO, value: uint64(len(p.ro))}
	p.ro = append(p.ro, b...)
	return a
}

// words puts 64-bit values into the read-only data, in the machine's byte order.
func (p *Program) words(w ...uint64) Arg {
	b := make([]byte, 0, 8*len(w))
	for _, v := range w {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return p.bytes(b)
}

// vector puts a NULL-terminated array of pointers to strings into the read-only data: an argv or an environment.
func (p *Program) vector(list []string) Arg {
	b := make([]byte, 0, 8*len(list)+8)
	for _, s := range list {
		b = binary.NativeEndian.AppendUint64(b, roBase+p.str(s).value)
	}
	return p.words0(b)
}

func (p *Program) words0(b []byte) Arg { return p.bytes(append(b, 0, 0, 0, 0, 0, 0, 0, 0)) }

// scratch reserves n zeroed, writable, 8-byte aligned bytes.
func (p *Program) scratch(n int) Arg {
	p.rw = align8(p.rw)
	a := Arg{kind: argRW, value: uint64(len(p.rw))}
	p.rw = append(p.rw, make([]byte, n)...)
	return a
}

func (a Arg) plus(n int) Arg {
	a.value += uint64(n) //nolint:gosec // small offsets
	return a
}

func align8(b []byte) []byte {
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// begin names the step that the following operations belong to.
func (p *Program) begin(step string) { p.step = step }

// here returns a label of the next operation.
func (p *Program) here() *Label { return &Label{at: len(p.meta)} }

// place puts a label that was handed out before at the next operation.
func (p *Program) place(l *Label) { l.at = len(p.meta) }

// call appends a system call; what names it in errors.
func (p *Program) call(what string, nr uintptr, args ...Arg) op {
	return p.add(what, int64(nr), args) //nolint:gosec // numbers are small
}

// check appends a comparison: the eight bytes at addr, masked, must equal want, or the child fails with errno.
func (p *Program) check(what string, addr Arg, mask, want uint64, errno unix.Errno) op {
	return p.add(what, opCheck, []Arg{addr, imm64(mask), imm64(want), imm(int(errno))})
}

func (p *Program) add(what string, nr int64, args []Arg) op {
	o := op{p, len(p.meta)}
	p.meta = append(p.meta, opMeta{step: p.step, what: what})
	var blank [opBytes]byte
	p.table = append(p.table, blank[:]...)
	binary.NativeEndian.PutUint64(o.bytes()[offNumber:], uint64(nr)) //nolint:gosec // the bits
	for n, a := range args {
		o.set(n, a)
	}
	return o
}

// jump appends an unconditional jump.
func (p *Program) jump(to *Label) {
	p.check("continue", p.words(0), 0, 0, 0).then(to)
}

func (o op) bytes() []byte { return o.p.table[o.i*opBytes:][:opBytes] }

// set replaces argument n.
func (o op) set(n int, a Arg) {
	b := o.bytes()
	binary.NativeEndian.PutUint64(b[offArgs+8*n:], a.address())
	b[offCells] &^= 1 << n
	if a.kind == argCell {
		b[offCells] |= 1 << n
	}
}

// into stores the result.
func (o op) into(c Cell) op {
	binary.NativeEndian.PutUint64(o.bytes()[offDst:], rwBase+uint64(c))
	return o
}

// expect makes every result but n a failure (EPROTO).
func (o op) expect(n int) op {
	o.bytes()[offFlags] |= flagExpect
	binary.NativeEndian.PutUint64(o.bytes()[offWant:], uint64(n)) //nolint:gosec // the bits
	return o
}

// again repeats the call as long as it answers EAGAIN.
func (o op) again() op {
	o.bytes()[offFlags] |= flagAgain
	return o
}

// orElse goes on at l when one of errnos comes back; with none, on every errno and unexpected result.
func (o op) orElse(l *Label, errnos ...unix.Errno) op {
	o.p.meta[o.i].other = l
	b := o.bytes()
	if len(errnos) == 0 {
		b[offFlags] |= flagJump
		b[offTolerate] = anyErrno
		return o
	}
	for i, e := range errnos {
		b[offTolerate+i] = uint8(e) //nolint:gosec // errnos that are listed here are below 134
	}
	return o
}

// ignore goes on with the next operation when one of errnos comes back.
func (o op) ignore(errnos ...unix.Errno) { o.orElse(nil, errnos...) }

// then goes on at l after success.
func (o op) then(l *Label) op {
	o.p.meta[o.i].ok = l
	return o
}

// link writes down where each operation goes on, now that all labels are placed.
func (p *Program) link() error {
	if len(p.meta) > math.MaxUint16 {
		return fmt.Errorf("link program: %d operations are more than a container needs: %w", len(p.meta), unix.E2BIG)
	}
	for i := range p.meta {
		b := p.table[i*opBytes:]
		binary.NativeEndian.PutUint32(b[offOK:], uint32(p.meta[i].ok.index(i+1)))       //nolint:gosec // bounded above
		binary.NativeEndian.PutUint32(b[offOther:], uint32(p.meta[i].other.index(i+1))) //nolint:gosec // bounded above
	}
	return nil
}

func (l *Label) index(next int) int {
	if l == nil {
		return next
	}
	return l.at
}

func (a Arg) address() uint64 {
	switch a.kind {
	case argRO:
		return roBase + a.value
	case argRW, argCell:
		return rwBase + a.value
	default:
		return a.value
	}
}

// put64 writes a value into the writable data.
func (p *Program) put64(at Arg, v uint64) { binary.NativeEndian.PutUint64(p.rw[at.value:], v) }

// point writes the address of other data into the writable data.
func (p *Program) point(at, to Arg) { p.put64(at, to.address()) }
