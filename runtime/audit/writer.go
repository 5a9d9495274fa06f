package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// SyncEvery is how long a record may stay undurable.
const SyncEvery = 100 * time.Millisecond

// defaultSegmentBytes is the size at which a new file is begun.
const defaultSegmentBytes = 64 << 20

// Options configure a Writer.
type Options struct {
	// SegmentBytes is the size at which a new file is begun; 0 is 64 MiB.
	SegmentBytes int64
	// Failed is called when records could not be written or made durable; nil ignores it. It must not call the Writer.
	Failed func(err error)
}

// Writer appends to a log. It is safe for concurrent use; the log has no other writer.
type Writer struct {
	o   Options
	dir *os.File

	mu       sync.Mutex
	file     *os.File
	segment  int
	size     int64     // of the file, up to the last whole record
	sum      hash.Hash // of the file up to size
	seq      uint64
	prev     Hash
	gap      gap
	gaps     int // records of type gap
	dirty    bool
	wake     *time.Timer
	closed   bool
	segments []Segment // finished ones
}

// gap is what could not be written.
type gap struct {
	Dropped uint64    `json:"dropped"`
	Since   time.Time `json:"since"`
	Error   string    `json:"error"`
}

// Segment is one file of a log.
type Segment struct {
	Name   string
	Bytes  int64
	SHA256 Hash
}

// ErrBusy says that another process writes the log.
var ErrBusy = errors.New("another process writes this log")

// Open opens a log for writing, which it makes if it is missing: path and its parents, closed to others. A torn last
// record is cut off. The error is ErrBusy if the log has a writer.
func Open(path string, o Options) (*Writer, error) {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = defaultSegmentBytes
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	if err := os.MkdirAll(path, 0o700); err != nil { //nolint:forbidigo // our own state, not a root file system
		return nil, fmt.Errorf("make log: %w", err)
	}
	dir, err := os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	w := &Writer{o: o, dir: dir, prev: genesisHash()}
	if err := w.open(); err != nil {
		w.dir.Close()
		if w.file != nil {
			w.file.Close()
		}
		return nil, err
	}
	return w, nil
}

func (w *Writer) open() error {
	if err := unix.Flock(int(w.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrBusy
		}
		return fmt.Errorf("open log %s: %w", w.dir.Name(), err)
	}
	names, err := segmentNames(w.dir.Name())
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return w.begin()
	}
	for i, name := range names {
		if name != segmentName(i+1) {
			return fmt.Errorf("open log %s: %s is missing", w.dir.Name(), segmentName(i+1))
		}
		if err := w.resume(i+1, i == len(names)-1); err != nil {
			return err
		}
	}
	return nil
}

func segmentName(n int) string { return fmt.Sprintf("%06d.jsonl", n) }

// segmentNames lists the files of a log, in order.
func segmentNames(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "[0-9][0-9][0-9][0-9][0-9][0-9].jsonl"))
	if err != nil {
		return nil, fmt.Errorf("list log: %w", err)
	}
	for i := range names {
		names[i] = filepath.Base(names[i])
	}
	return names, nil
}

// begin makes the next file.
func (w *Writer) begin() error {
	fd, err := unix.Openat(int(w.dir.Fd()), segmentName(w.segment+1),
		unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_APPEND|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("make %s: %w", segmentName(w.segment+1), err)
	}
	w.segment++
	w.file, w.size, w.sum = os.NewFile(uintptr(fd), segmentName(w.segment)), 0, sha256.New()
	if err := w.dir.Sync(); err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	return nil
}

// resume reads an existing file; the last one is opened for appending, and cut where its last record is torn. What is
// wrong before that is for Verify to tell: the chain goes on from what is there.
func (w *Writer) resume(n int, last bool) error {
	fd, err := unix.Openat(int(w.dir.Fd()), segmentName(n), unix.O_RDWR|unix.O_APPEND|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", segmentName(n), err)
	}
	f := os.NewFile(uintptr(fd), segmentName(n))
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errNoFile
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("open %s: %w", segmentName(n), err)
	}
	lines := newLines(f)
	sum := sha256.New()
	var good int64
	var torn []byte
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if seq, _, ok := parseHead(line); err != nil || !ok || !json.Valid(line) {
			torn = bytes.Clone(line)
			break
		} else {
			w.seq = seq
		}
		w.prev = sha256.Sum256(line)
		sum.Write(line)
		sum.Write([]byte{'\n'})
		good += int64(len(line)) + 1
	}
	if !last {
		f.Close()
		w.segments = append(w.segments, Segment{segmentName(n), good, Hash(sum.Sum(nil))})
		return nil
	}
	w.file, w.segment, w.size, w.sum = f, n, good, sum
	if st.Size() == good {
		return nil
	}
	if lines.more() {
		return fmt.Errorf("open log %s: %s, offset %d: not a record, and others follow it: it was changed", w.dir.Name(), segmentName(n), good)
	}
	if err := f.Truncate(good); err != nil {
		return fmt.Errorf("cut torn record: %w", err)
	}
	cut := sha256.Sum256(torn)
	return w.Append(TypeRecovered, map[string]any{"cutBytes": st.Size() - good, "sha256": Hash(cut).String()})
}

// Append writes a record. data is encoded as JSON. The error says that it is not in the log; the log says so too as soon
// as it can be written again.
func (w *Writer) Append(kind string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode record %q: %w", kind, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return fmt.Errorf("append record %q: %w", kind, os.ErrClosed)
	}
	err = w.fill()
	if err == nil {
		err = w.write(kind, text)
	}
	if err != nil {
		if w.gap.Dropped == 0 {
			w.gap.Since, w.gap.Error = time.Now().UTC(), err.Error()
		}
		w.gap.Dropped++
		return fmt.Errorf("append record %q: %w", kind, err)
	}
	return nil
}

// fill writes the record of a gap, if there is one.
func (w *Writer) fill() error {
	if w.gap.Dropped == 0 {
		return nil
	}
	text, err := json.Marshal(w.gap)
	if err != nil {
		return err
	}
	if err := w.write(TypeGap, text); err != nil {
		return err
	}
	w.gap = gap{}
	w.gaps++
	return nil
}

// write writes one line, whole or not at all.
func (w *Writer) write(kind string, data []byte) error {
	line, err := appendRecord(nil, w.seq+1, w.prev, time.Now(), kind, data)
	if err != nil {
		return err
	}
	if w.size > 0 && w.size+int64(len(line)) > w.o.SegmentBytes {
		if err := w.rotate(); err != nil {
			return err
		}
	}
	n := len(line)
	line = append(line, '\n')
	if _, err := w.file.Write(line); err != nil {
		// Half a line must not stay: the next one would be glued to it.
		if terr := w.file.Truncate(w.size); terr != nil {
			err = errors.Join(err, terr)
		}
		return err
	}
	w.prev = sha256.Sum256(line[:n])
	w.sum.Write(line)
	w.seq++
	w.size += int64(len(line))
	if !w.dirty {
		w.dirty = true
		w.wake = time.AfterFunc(SyncEvery, w.syncLate)
	}
	return nil
}

func (w *Writer) rotate() error {
	if err := w.file.Sync(); err != nil {
		return err
	}
	old, segment := w.file, Segment{segmentName(w.segment), w.size, Hash(w.sum.Sum(nil))}
	if err := w.begin(); err != nil {
		return err
	}
	old.Close()
	w.segments = append(w.segments, segment)
	return nil
}

func (w *Writer) syncLate() {
	if err := w.Sync(); err != nil && !errors.Is(err, os.ErrClosed) {
		w.o.Failed(err)
	}
}

// Sync makes everything durable that was appended before.
func (w *Writer) Sync() error {
	w.mu.Lock()
	if !w.dirty || w.closed {
		w.mu.Unlock()
		return nil
	}
	w.dirty = false
	// Without the lock: appending must not wait for the disk.
	fd, err := unix.FcntlInt(w.file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	w.mu.Unlock()
	if err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Fdatasync(fd); err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	return nil
}

// Head returns the number and the hash of the last record.
func (w *Writer) Head() (seq uint64, prev Hash) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seq, w.prev
}

// Segments returns the files of the log as they are now.
func (w *Writer) Segments() []Segment {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append(append([]Segment(nil), w.segments...), Segment{segmentName(w.segment), w.size, Hash(w.sum.Sum(nil))})
}

// Dir returns the log's directory, which stays the Writer's.
func (w *Writer) Dir() *os.File { return w.dir }

// Close makes everything durable and gives the log free.
func (w *Writer) Close() error {
	err := w.Sync()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	if w.wake != nil {
		w.wake.Stop()
	}
	w.file.Close()
	w.dir.Close()
	return err
}
