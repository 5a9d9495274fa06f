package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotFound is returned for a name that the archive does not hold.
var ErrNotFound = errors.New("not in the archive")

// maxLinks bounds a chain of symbolic links inside the outer archive: old
// `docker save` writes a repeated layer as a link to its first copy.
const maxLinks = 8

// entry is where a name's bytes stand in the archive file, or what it links to.
type entry struct {
	offset, size int64
	link         string // cleaned target; empty for a regular file
}

// Archive is an indexed image archive. Its methods do not write.
type Archive struct {
	data    io.ReaderAt
	close   func() error
	entries map[string]entry
	lim     Limits
}

// Open indexes the image archive in the file at filePath, which may be
// compressed with gzip or zstd (then it is unpacked to an unlinked file in
// tempDir first). The caller closes the Archive.
func Open(filePath, tempDir string, lim Limits) (*Archive, error) {
	lim = lim.withDefaults()
	// O_NONBLOCK: opening a FIFO would wait for a writer.
	file, err := os.OpenFile(filePath, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	a, err := openFile(file, tempDir, lim)
	if err != nil {
		return nil, fmt.Errorf("read image %q: %w", filePath, err)
	}
	return a, nil
}

// openFile takes ownership of file.
func openFile(file *os.File, tempDir string, lim Limits) (_ *Archive, err error) {
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("not a regular file but %s", info.Mode().Type())
	}
	compressed, err := isCompressed(file)
	if err != nil {
		return nil, err
	}
	if compressed {
		plain, err := decompressToTemp(file, tempDir, lim)
		if err != nil {
			return nil, err
		}
		file.Close()
		file = plain
	}
	entries, err := index(file, lim)
	if err != nil {
		return nil, err
	}
	return &Archive{data: file, close: file.Close, entries: entries, lim: lim}, nil
}

// Close closes the archive file.
func (a *Archive) Close() error { return a.close() }

func decompressToTemp(file *os.File, tempDir string, lim Limits) (*os.File, error) {
	fd, err := unix.Open(tempDir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create temporary file in %q: %w", tempDir, err)
	}
	out := os.NewFile(uintptr(fd), "image archive")
	in, err := decompress(file)
	if err == nil {
		_, err = io.Copy(out, &limitReader{r: in, left: lim.ArchiveBytes, what: "archive bytes", limit: lim.ArchiveBytes})
		err = errors.Join(err, in.Close())
	}
	if err == nil {
		_, err = out.Seek(0, io.SeekStart)
	}
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("decompress archive: %w", err)
	}
	return out, nil
}

// index reads the headers of a tar file. r must stand at the start.
func index(r io.ReadSeeker, lim Limits) (map[string]entry, error) {
	entries := map[string]entry{}
	tr := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", n, err)
		}
		if n >= lim.ArchiveEntries {
			return nil, &LimitError{What: "archive entries", Limit: int64(lim.ArchiveEntries)}
		}
		e, ok, err := indexEntry(r, h)
		if err != nil {
			return nil, fmt.Errorf("entry %q: %w", h.Name, err)
		}
		if !ok {
			continue
		}
		name, err := cleanName(h.Name)
		if err != nil {
			return nil, err
		}
		// Two files of one name: which of them a reader sees depends on the
		// reader, so what was scanned need not be what runs.
		if _, dup := entries[name]; dup {
			return nil, fmt.Errorf("entry %q: name occurs twice", name)
		}
		entries[name] = e
	}
	return entries, nil
}

func indexEntry(r io.Seeker, h *tar.Header) (entry, bool, error) {
	switch h.Typeflag {
	case tar.TypeReg:
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return entry{}, false, errors.New("sparse file in an image archive")
			}
		}
		// tar.Reader reads headers block by block and never ahead, so the
		// file position is where the data starts.
		offset, err := r.Seek(0, io.SeekCurrent)
		if err != nil {
			return entry{}, false, err
		}
		return entry{offset: offset, size: h.Size}, true, nil
	case tar.TypeSymlink:
		target, err := cleanName(path.Join(path.Dir(h.Name), h.Linkname))
		return entry{link: target}, true, err
	case tar.TypeLink:
		target, err := cleanName(h.Linkname)
		return entry{link: target}, true, err
	case tar.TypeDir, tar.TypeXGlobalHeader:
		return entry{}, false, nil
	default:
		return entry{}, false, fmt.Errorf("type %q in an image archive", h.Typeflag)
	}
}

// cleanName returns the slash-separated name without leading "/" or "./". It
// refuses a name that climbs.
func cleanName(unsafeName string) (string, error) {
	name := path.Clean(strings.TrimLeft(unsafeName, "/"))
	if name == "." || name == ".." || strings.HasPrefix(name, "../") || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("entry %q: name leaves the archive", unsafeName)
	}
	return name, nil
}

// open returns the bytes of the named entry, links followed.
func (a *Archive) open(name string) (*io.SectionReader, error) {
	for range maxLinks {
		e, ok := a.entries[name]
		if !ok {
			return nil, fmt.Errorf("%q: %w", name, ErrNotFound)
		}
		if e.link == "" {
			return io.NewSectionReader(a.data, e.offset, e.size), nil
		}
		name = e.link
	}
	return nil, fmt.Errorf("%q: too many links", name)
}

// readSmall returns the whole of a metadata entry.
func (a *Archive) readSmall(name string) ([]byte, error) {
	r, err := a.open(name)
	if err != nil {
		return nil, err
	}
	if r.Size() > a.lim.MetadataBytes {
		return nil, fmt.Errorf("%q: %w", name, &LimitError{What: "metadata bytes", Limit: a.lim.MetadataBytes})
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	return data, nil
}
