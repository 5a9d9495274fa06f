package initproc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// The image is a static ELF executable with four segments at fixed addresses. Nothing is relocated and the child has
// neither heap nor libc, so address randomisation would hide nothing but the stack, which the kernel still moves.
const (
	codeBase  = 0x400000  // headers and interpreter, r-x
	tableBase = 0x1000000 // operations, r--; TABLE in vm_*.s
	// Not 0x10000000 and 0x40000000, which are CLONE_NEWUSER and CLONE_NEWNET: String tells addresses from numbers.
	roBase = 0x11000000 // strings and structures, r--
	rwBase = 0x41000000 // cells and buffers, rw-; REPORT in vm_*.s
	roMax  = rwBase - roBase

	headerBytes = 64 + 4*56

	flagExec, flagWrite, flagRead = 1, 2, 4 // PF_X, PF_W, PF_R
)

// imageName is how the kernel shows the image: /memfd:agentsafe-init.
const imageName = "agentsafe-init"

var errNoInterpreter = errors.New("no interpreter for this architecture")

// segment is a part of the image: where it is mapped, and what is in it.
type segment struct {
	base  uint64
	flags uint32
	data  [][]byte
}

func (s *segment) size() int {
	n := 0
	for _, d := range s.data {
		n += len(d)
	}
	return n
}

// segments lays the executable out: the interpreter, then p's table and data.
func (p *Program) segments() ([]segment, error) {
	code := interpreterCode()
	if code == nil {
		return nil, errNoInterpreter
	}
	if err := p.link(); err != nil {
		return nil, err
	}
	if len(p.ro) > roMax {
		return nil, fmt.Errorf("init program of %d bytes: %w", len(p.ro), unix.E2BIG)
	}
	head := make([]byte, headerBytes)
	parts := []segment{
		{codeBase, flagRead | flagExec, [][]byte{head, code}},
		{tableBase, flagRead, [][]byte{p.table}},
		{roBase, flagRead, [][]byte{p.ro}},
		{rwBase, flagRead | flagWrite, [][]byte{p.rw}},
	}
	putELFHeader(head)
	align, offset := os.Getpagesize(), 0
	for i := range parts {
		size := uint64(parts[i].size()) //nolint:gosec // not negative
		b := head[64+56*i:]
		put32, put64 := binary.NativeEndian.PutUint32, binary.NativeEndian.PutUint64
		put32(b, 1) // PT_LOAD
		put32(b[4:], parts[i].flags)
		put64(b[8:], uint64(offset)) //nolint:gosec // not negative
		put64(b[16:], parts[i].base)
		put64(b[24:], parts[i].base)
		put64(b[32:], size)
		put64(b[40:], size)
		put64(b[48:], uint64(align)) //nolint:gosec // not negative
		// File offset and address must be congruent modulo the page size: each part starts on a page of its own.
		offset = roundUp(offset+int(size), align) //nolint:gosec // bounded above
	}
	return parts, nil
}

// writeImage writes the executable to f.
func (p *Program) writeImage(f *os.File) error {
	parts, err := p.segments()
	if err != nil {
		return err
	}
	align, offset := os.Getpagesize(), 0
	for _, part := range parts {
		at := int64(offset)
		for _, d := range part.data {
			if _, err := f.WriteAt(d, at); err != nil {
				return fmt.Errorf("write init program: %w", err)
			}
			at += int64(len(d))
		}
		offset = roundUp(int(at), align)
	}
	return nil
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

func putELFHeader(b []byte) {
	machine := uint16(62) // EM_X86_64
	if runtime.GOARCH == "arm64" {
		machine = 183 // EM_AARCH64
	}
	put16, put32, put64 := binary.NativeEndian.PutUint16, binary.NativeEndian.PutUint32, binary.NativeEndian.PutUint64
	copy(b, "\x7fELF\x02\x01\x01")
	put16(b[16:], 2) // ET_EXEC
	put16(b[18:], machine)
	put32(b[20:], 1)                    // EV_CURRENT
	put64(b[24:], codeBase+headerBytes) // entry
	put64(b[32:], 64)                   // program headers
	put16(b[52:], 64)                   // size of this header
	put16(b[54:], 56)                   // size of a program header
	put16(b[56:], 4)                    // number of them
	put16(b[58:], 64)                   // size of a section header, of which there is none
}

// seal writes the image into a memfd that nobody, root in the container included, can change any more: what
// /proc/PID/exe of init leads to (CVE-2019-5736, TestAttack_CVE_2019_5736). The caller owns the file.
func (p *Program) seal(minFD int) (*os.File, error) {
	// vm.memfd_noexec=1 makes memfds non-executable unless MFD_EXEC is given, which Linux < 6.3 answers with EINVAL.
	const mfdExec = 0x10
	fd, err := unix.MemfdCreate(imageName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|mfdExec)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(imageName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("create memfd for init: %w", err)
	}
	f := os.NewFile(uintptr(fd), imageName)
	if err := p.writeImage(f); err != nil {
		f.Close()
		return nil, err
	}
	seals := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal init program: %w", err)
	}
	defer f.Close()
	// The child's descriptors are arranged from 0 upwards before it executes /proc/self/fd/N: N must be out of their way.
	high, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, minFD)
	if err != nil {
		return nil, fmt.Errorf("duplicate init program: %w", err)
	}
	return os.NewFile(uintptr(high), imageName), nil
}
