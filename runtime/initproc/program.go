package initproc

import (
	"encoding/binary"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// op is one system call, or one check of memory, of a Program. Its encoding is what vm_*.s reads.
type op struct {
	step string // the row of the table of steps that it belongs to
	what string // what a person calls it, for errors: "mount /proc"
	nr   int64  // system call number; opCheck compares memory instead
	args [6]Arg
	dst  Cell // where the result goes, as 32 bits; 0 is nowhere

	want      int64 // with flagExpect: the only good result
	flags     uint8
	ok, other *Label // where to go next; nil is the op that follows
	tolerate  [8]uint8
}

const (
	opBytes    = 96
	opCheck    = -1
	flagExpect = 1 // the result must equal want
	flagJump   = 2 // on a different result go to other instead of failing
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

// Program is an ordered table of system calls that a child performs between clone and execve. It is data: it can be
// printed, compared and cut short. Use newProgram; the zero value has no report cell.
type Program struct {
	ops  []op
	ro   []byte
	rw   []byte
	step string
	strs map[string]Arg
}

// reportCell holds the descriptor that failures are written to; its place is fixed, see vm_*.s.
const reportCell Cell = 16

func newProgram(report int) *Program {
	p := &Program{
		ops:  make([]op, 0, 256),
		ro:   make([]byte, 0, 16<<10),
		rw:   make([]byte, 24, 4<<10),
		strs: make(map[string]Arg, 128),
	}
	binary.NativeEndian.PutUint32(p.rw[reportCell:], uint32(report))
	return p
}

// Len is the number of operations; a fault can be injected before each of them.
func (p *Program) Len() int { return len(p.ops) }

// Cut returns a copy of p that ends, with a report of errno, before operation n: the child fails exactly there. It
// is what crash injection uses.
func (p *Program) Cut(n int, errno unix.Errno) *Program {
	cut := *p
	cut.ops = append([]op(nil), p.ops...)
	cut.ops[n] = op{step: p.ops[n].step, what: p.ops[n].what + " (injected fault)", nr: opCheck, args: [6]Arg{
		cut.scratch(8), imm(0), imm(1), imm(int(errno)),
	}}
	return &cut
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

// writable puts initialised, writable data into the program.
func (p *Program) writable(b []byte) Arg {
	a := p.scratch(len(b))
	copy(p.rw[a.value:], b)
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
func (p *Program) here() *Label { return &Label{at: len(p.ops)} }

// place puts a label that was handed out before at the next operation.
func (p *Program) place(l *Label) { l.at = len(p.ops) }

// call appends a system call; what names it in errors.
func (p *Program) call(what string, nr uintptr, args ...Arg) *op {
	o := op{step: p.step, what: what, nr: int64(nr)} //nolint:gosec // numbers are small
	copy(o.args[:], args)
	p.ops = append(p.ops, o)
	return &p.ops[len(p.ops)-1]
}

// check appends a comparison: the eight bytes at addr, masked, must equal want, or the child fails with errno.
func (p *Program) check(what string, addr Arg, mask, want uint64, errno unix.Errno) *op {
	o := op{step: p.step, what: what, nr: opCheck, args: [6]Arg{addr, imm64(mask), imm64(want), imm(int(errno))}}
	p.ops = append(p.ops, o)
	return &p.ops[len(p.ops)-1]
}

// jump appends an unconditional jump.
func (p *Program) jump(to *Label) {
	zero := p.scratch(8)
	p.check("continue", zero, 0, 0, 0).ok = to
}

// into stores the result.
func (o *op) into(c Cell) *op {
	o.dst = c
	return o
}

// expect makes every result but n a failure (EPROTO).
func (o *op) expect(n int) *op {
	o.flags |= flagExpect
	o.want = int64(n)
	return o
}

// orElse goes on at l when one of errnos comes back; with none, on every errno and unexpected result.
func (o *op) orElse(l *Label, errnos ...unix.Errno) *op {
	o.other = l
	if len(errnos) == 0 {
		o.flags |= flagJump
		o.tolerate[0] = anyErrno
		return o
	}
	for i, e := range errnos {
		o.tolerate[i] = uint8(e) //nolint:gosec // errnos that are listed here are below 134
	}
	return o
}

// ignore goes on with the next operation when one of errnos comes back.
func (o *op) ignore(errnos ...unix.Errno) *op { return o.orElse(nil, errnos...) }

// then goes on at l after success.
func (o *op) then(l *Label) *op {
	o.ok = l
	return o
}

// encode lays the operations out as vm_*.s reads them.
func (p *Program) encode() ([]byte, error) {
	if len(p.ops) > math.MaxUint16 {
		return nil, fmt.Errorf("encode program: %d operations are more than a container needs: %w", len(p.ops), unix.E2BIG)
	}
	out := make([]byte, len(p.ops)*opBytes)
	for i := range p.ops {
		o, b := &p.ops[i], out[i*opBytes:]
		put := binary.NativeEndian.PutUint64
		put(b, uint64(o.nr)) //nolint:gosec // the bits
		for n, a := range o.args {
			put(b[8+8*n:], a.address())
			if a.kind == argCell {
				b[64] |= 1 << n
			}
		}
		if o.dst != 0 {
			put(b[56:], rwBase+uint64(o.dst))
		}
		b[65] = o.flags
		binary.NativeEndian.PutUint32(b[68:], uint32(o.ok.index(i+1)))    //nolint:gosec // bounded above
		binary.NativeEndian.PutUint32(b[72:], uint32(o.other.index(i+1))) //nolint:gosec // bounded above
		put(b[80:], uint64(o.want))                                       //nolint:gosec // the bits
		copy(b[88:], o.tolerate[:])
	}
	return out, nil
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
