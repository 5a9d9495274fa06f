package patch

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// binary is a change of a file that is no text: its new content, or how that is made of the old one.
type binary struct {
	data  string
	delta bool
}

// readBinary reads one or two chunks, of which the second is the way back.
func (p *parser) readBinary(f *File) error {
	for i := range 2 {
		kind, size, ok := strings.Cut(p.peek(), " ")
		if !ok || kind != "literal" && kind != "delta" {
			if i == 0 {
				return errors.New("a binary patch that is neither literal nor delta")
			}
			return nil
		}
		n, err := strconv.Atoi(size)
		if err != nil || n < 0 || n > MaxFile {
			return fmt.Errorf("a binary patch of %.20q bytes: want at most %d", size, MaxFile)
		}
		p.at++
		data, err := p.readChunk(n)
		if err != nil {
			return err
		}
		if i == 0 {
			f.binary = &binary{data, kind == "delta"}
		}
	}
	return nil
}

// readChunk reads lines of base 85 up to an empty one, and inflates them to n bytes.
func (p *parser) readChunk(n int) (string, error) {
	var deflated []byte
	for ; p.peek() != ""; p.at++ {
		line := p.peek()
		length := 0
		switch c := line[0]; {
		case c >= 'A' && c <= 'Z':
			length = int(c-'A') + 1
		case c >= 'a' && c <= 'z':
			length = int(c-'a') + 27
		}
		data, err := decode85(line[1:])
		if err != nil || length == 0 || length > len(data) || length < len(data)-3 {
			return "", errors.New("a line of a binary patch is damaged")
		}
		deflated = append(deflated, data[:length]...)
	}
	if p.at >= len(p.lines) {
		return "", errors.New("the patch ends within a binary file")
	}
	p.at++
	z, err := zlib.NewReader(bytes.NewReader(deflated))
	if err != nil {
		return "", fmt.Errorf("inflate: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(z, int64(n)+1))
	if err != nil {
		return "", fmt.Errorf("inflate: %w", err)
	}
	if len(data) != n {
		return "", fmt.Errorf("a binary patch of another length than the %d bytes that it says", n)
	}
	return string(data), nil
}

// decode85 reads groups of five digits in git's alphabet.
func decode85(s string) ([]byte, error) {
	const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
	const group = 5
	if len(s)%group != 0 {
		return nil, errors.New("groups of five digits")
	}
	var out []byte
	for ; s != ""; s = s[group:] {
		v := uint64(0)
		for i := range group {
			digit := strings.IndexByte(alphabet, s[i])
			if digit < 0 {
				return nil, errors.New("no digit of base 85")
			}
			v = v*uint64(len(alphabet)) + uint64(digit)
		}
		if v > 1<<32-1 {
			return nil, errors.New("a group that is too large")
		}
		out = append(out, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
	}
	return out, nil
}

func (b *binary) apply(old string) (string, error) {
	if !b.delta {
		return b.data, nil
	}
	d := &delta{rest: b.data}
	from, to := d.size(), d.size()
	switch {
	case d.failed || to > MaxFile:
		return "", errDelta
	case from != uint64(len(old)):
		return "", fmt.Errorf("%w: the file has %d bytes and not %d", ErrNoMatch, len(old), from)
	}
	var out strings.Builder
	for d.rest != "" && !d.failed {
		part := d.instruction(old)
		if uint64(out.Len()+len(part)) > to {
			return "", errDelta
		}
		out.WriteString(part)
	}
	if d.failed || uint64(out.Len()) != to {
		return "", errDelta
	}
	return out.String(), nil
}

var errDelta = errors.New("a delta of the patch is damaged")

// delta reads git's deltas: two sizes, then copies of the old content and pieces of the new one.
type delta struct {
	rest   string
	failed bool
}

func (d *delta) next() byte {
	if d.rest == "" {
		d.failed = true
		return 0
	}
	c := d.rest[0]
	d.rest = d.rest[1:]
	return c
}

func (d *delta) size() uint64 {
	var v uint64
	for shift := 0; shift < 64; shift += 7 {
		c := d.next()
		v |= uint64(c&0x7f) << shift
		if c&0x80 == 0 {
			return v
		}
	}
	d.failed = true
	return 0
}

func (d *delta) instruction(old string) string {
	op := d.next()
	if op&0x80 == 0 {
		if op == 0 || int(op) > len(d.rest) {
			d.failed = true
			return ""
		}
		part := d.rest[:op]
		d.rest = d.rest[op:]
		return part
	}
	var offset, size uint64
	for i := range 4 {
		if op>>i&1 != 0 {
			offset |= uint64(d.next()) << (8 * i)
		}
	}
	for i := range 3 {
		if op>>(4+i)&1 != 0 {
			size |= uint64(d.next()) << (8 * i)
		}
	}
	if size == 0 {
		size = 0x10000
	}
	if d.failed || offset+size > uint64(len(old)) {
		d.failed = true
		return ""
	}
	return old[offset : offset+size]
}
