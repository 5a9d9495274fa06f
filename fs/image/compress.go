package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"
)

// maxWindowBytes is the largest zstd window accepted. RFC 8878 recommends that
// decoders support 8 MiB; `zstd --long` goes to 128 MiB.
const maxWindowBytes = 128 << 20

func gzipMagic() []byte { return []byte{0x1f, 0x8b} }
func zstdMagic() []byte { return []byte{0x28, 0xb5, 0x2f, 0xfd} }

// isCompressed looks at the first bytes and rewinds.
func isCompressed(r io.ReadSeeker) (bool, error) {
	var head [4]byte
	n, err := io.ReadFull(r, head[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, err
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	return bytes.HasPrefix(head[:n], gzipMagic()) || bytes.HasPrefix(head[:n], zstdMagic()), nil
}

// decompress undoes gzip or zstd, told by the first bytes and not by what a
// media type claims. Anything else is passed on as it is.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, gzipMagic()):
		return gzip.NewReader(br)
	case bytes.HasPrefix(head, zstdMagic()):
		d, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindowBytes))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	default:
		return io.NopCloser(br), nil
	}
}

// limitReader fails, where io.LimitReader would end quietly.
type limitReader struct {
	r           io.Reader
	left, limit int64
	what        string
}

func (l *limitReader) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, &LimitError{What: l.what, Limit: l.limit}
	}
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	l.left -= int64(n)
	if l.left < 0 {
		return 0, &LimitError{What: l.what, Limit: l.limit}
	}
	return n, err
}
