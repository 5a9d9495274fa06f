package initproc

import (
	"bytes"
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
	codeBase  = 0x400000   // headers and interpreter, r-x
	tableBase = 0x1000000  // operations, r--; TABLE in vm_*.s
	roBase    = 0x10000000 // strings and structures, r--
	rwBase    = 0x40000000 // cells and buffers, rw-; REPORT in vm_*.s
	roMax     = rwBase - roBase

	pageBytes   = 4096
	imageAlign  = 0x10000 // the largest page size of arm64
	headerBytes = 64 + 4*56
)

var errNoInterpreter = errors.New("no interpreter for this architecture")

// image builds the executable: the interpreter, then p's table and data.
func (p *Program) image() ([]byte, error) {
	code := interpreterCode()
	if code == nil {
		return nil, errNoInterpreter
	}
	table, err := p.encode()
	if err != nil {
		return nil, err
	}
	if len(p.ro) > roMax {
		return nil, fmt.Errorf("init program of %d bytes: %w", len(p.ro), unix.E2BIG)
	}
	// File offset and address must be congruent modulo the page size: each part starts on a page of its own.
	align := os.Getpagesize()
	parts := []struct {
		base  uint64
		flags uint32
		data  []byte
	}{
		{codeBase, 5, nil},
		{tableBase, 4, table},
		{roBase, 4, p.ro},
		{rwBase, 6, p.rw},
	}
	var head bytes.Buffer
	head.Grow(headerBytes)
	writeELFHeader(&head)
	offset := 0
	size := 0
	for i := range parts {
		length := len(parts[i].data)
		if i == 0 {
			length = headerBytes + len(code)
		}
		for _, v := range []any{
			uint32(1), parts[i].flags, uint64(offset), parts[i].base, parts[i].base,
			uint64(length), uint64(length), uint64(align),
		} {
			writeValue(&head, v)
		}
		size = offset + length
		offset = roundUp(size, align)
	}
	out := make([]byte, size)
	copy(out, head.Bytes())
	copy(out[headerBytes:], code)
	at := roundUp(headerBytes+len(code), align)
	for _, part := range parts[1:] {
		copy(out[at:], part.data)
		at = roundUp(at+len(part.data), align)
	}
	return out, nil
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

func writeELFHeader(b *bytes.Buffer) {
	machine := uint16(62) // EM_X86_64
	if runtime.GOARCH == "arm64" {
		machine = 183 // EM_AARCH64
	}
	b.WriteString("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	for _, v := range []any{
		uint16(2), machine, uint32(1), // ET_EXEC, machine, EV_CURRENT
		uint64(codeBase + headerBytes), uint64(64), uint64(0), // entry, program headers, sections
		uint32(0), uint16(64), uint16(56), uint16(4), // flags, header sizes, count
		uint16(64), uint16(0), uint16(0), // no sections
	} {
		writeValue(b, v)
	}
}

func writeValue(b *bytes.Buffer, v any) {
	var w [8]byte
	switch n := v.(type) {
	case uint16:
		binary.NativeEndian.PutUint16(w[:], n)
		b.Write(w[:2])
	case uint32:
		binary.NativeEndian.PutUint32(w[:], n)
		b.Write(w[:4])
	case uint64:
		binary.NativeEndian.PutUint64(w[:], n)
		b.Write(w[:8])
	}
}

// seal writes the image into a memfd that nobody, root in the container included, can change any more: what
// /proc/PID/exe of init leads to (CVE-2019-5736, TestAttack_CVE_2019_5736). The caller owns the file.
func (p *Program) seal(minFD int) (*os.File, error) {
	img, err := p.image()
	if err != nil {
		return nil, err
	}
	// vm.memfd_noexec=1 makes memfds non-executable unless MFD_EXEC is given, which Linux < 6.3 answers with EINVAL.
	const mfdExec = 0x10
	fd, err := unix.MemfdCreate("agentsafe-init", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|mfdExec)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("agentsafe-init", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("create memfd for init: %w", err)
	}
	f := os.NewFile(uintptr(fd), "agentsafe-init")
	if _, err := f.Write(img); err != nil {
		f.Close()
		return nil, fmt.Errorf("write init program: %w", err)
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
	return os.NewFile(uintptr(high), "agentsafe-init"), nil
}
