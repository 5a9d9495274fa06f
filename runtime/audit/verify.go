package audit

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Finding is something wrong with a log.
type Finding struct {
	File   string `json:"file"`
	Line   int    `json:"line"` // from 1
	Offset int64  `json:"offset"`
	// Seq is the record that should be there.
	Seq  uint64 `json:"seq"`
	What string `json:"what"`
}

// String is for people.
func (f Finding) String() string {
	return fmt.Sprintf("%s:%d (byte %d, record %d): %s", f.File, f.Line, f.Offset, f.Seq, f.What)
}

// Report is what Verify has found.
type Report struct {
	Records uint64 `json:"records"`
	Head    string `json:"head"` // hash of the last record
	// Closed says that the log is complete; nothing but promotions follows.
	Closed bool `json:"closed"`
	// Unsigned is why a closed log has no statement, in its own words. Without it a statement was to follow.
	Unsigned string    `json:"unsigned,omitempty"`
	Gaps     int       `json:"gaps"`
	Findings []Finding `json:"findings,omitempty"`
	// Segments are the files as they are.
	Segments []Segment `json:"-"`
}

// maxFindings bounds a report: after the first ones, more say nothing new.
const maxFindings = 20

// Verify checks the chain of a log. What is wrong with it is in the report; the error is that it can't be read.
func Verify(dir string) (*Report, error) {
	names, err := segmentNames(dir)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("verify log %s: %w", dir, os.ErrNotExist)
	}
	v := &verifier{prev: genesisHash(), report: &Report{}}
	for i, name := range names {
		if name != segmentName(i+1) {
			v.find(Finding{File: segmentName(i + 1), Seq: v.seq + 1, What: "the file is missing"})
			break
		}
		whole, err := v.file(dir, name)
		if err != nil {
			return nil, err
		}
		if !whole {
			break // what follows would be found as well, and says nothing new
		}
	}
	v.report.Records, v.report.Head = v.seq, v.prev.String()
	return v.report, nil
}

type verifier struct {
	seq    uint64
	prev   Hash
	report *Report
}

func (v *verifier) find(f Finding) {
	if len(v.report.Findings) < maxFindings {
		v.report.Findings = append(v.report.Findings, f)
	}
}

// file checks one file, and reports whether it could be read to its end.
func (v *verifier) file(dir, name string) (bool, error) {
	f, err := openLog(dir, name)
	if errors.Is(err, errNoFile) {
		v.find(Finding{File: name, Seq: v.seq + 1, What: err.Error() + ": it was put in the file's place"})
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines, sum := newLines(f), sha256.New()
	at := Finding{File: name}
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		at.Line++
		at.Seq, at.What = v.seq+1, ""
		if errors.Is(err, errLong) {
			at.What = "not a record: " + err.Error()
			v.find(at)
			return false, nil
		}
		if err != nil && !errors.Is(err, errTorn) {
			return false, fmt.Errorf("read %s: %w", name, err)
		}
		at.What = v.line(line, err != nil)
		if at.What != "" {
			v.find(at)
		}
		sum.Write(line)
		at.Offset += int64(len(line))
		if err == nil {
			sum.Write([]byte{'\n'})
			at.Offset++
		}
	}
	v.report.Segments = append(v.report.Segments, Segment{name, at.Offset, Hash(sum.Sum(nil))})
	return true, nil
}

// line checks one line and says what is wrong; afterwards it expects the line that belongs behind this one, so that one
// change is one finding and not one for each record after it.
func (v *verifier) line(line []byte, torn bool) string {
	seq, prev, ok := parseHead(line)
	want, follows := v.seq+1, prev == v.prev
	v.seq, v.prev = want, sha256.Sum256(line)
	switch {
	case torn:
		return "the record is torn: its end is missing"
	case !ok || !json.Valid(line):
		return "not a record"
	}
	v.seq = seq
	late := v.kind(recordType(line), line)
	switch {
	case seq == want && follows && late != "":
		return fmt.Sprintf("a record of type %q behind the one that closes the log: it was added", late)
	case seq == want && follows:
		return ""
	case seq == want:
		return fmt.Sprintf("it does not continue record %d: that one was changed, or this one was put in its place", want-1)
	case seq > want:
		return fmt.Sprintf("this is record %d: %d records before it are missing, or it was moved here", seq, seq-want)
	default:
		return fmt.Sprintf("this is record %d: it was moved here or repeated, or others were inserted before it", seq)
	}
}

// kind takes in what a record means for the log, and returns the type of one that does not belong behind its end.
func (v *verifier) kind(kind string, line []byte) (late string) {
	r := v.report
	switch kind {
	case TypeClose:
		var c struct {
			Data struct {
				Unsigned string `json:"unsigned"`
			} `json:"data"`
		}
		if json.Unmarshal(line, &c) == nil {
			r.Unsigned = c.Data.Unsigned
		}
		if r.Closed {
			late = kind
		}
		r.Closed = true
		return late
	case TypeGap:
		r.Gaps++
		return ""
	case TypePromotion, TypeRecovered:
		return ""
	}
	if r.Closed {
		return kind
	}
	return ""
}

// recordType reads the type of a line that parseHead accepts; "" if it stands elsewhere.
func recordType(line []byte) string {
	const marker = `,"type":"`
	const from, to = 80, 200 // seq, prev and time come first
	window := line[min(from, len(line)):min(to, len(line))]
	for i := 0; i+len(marker) <= len(window); i++ {
		if string(window[i:i+len(marker)]) != marker {
			continue
		}
		rest := window[i+len(marker):]
		for j := range rest {
			if rest[j] == '"' {
				return string(rest[:j])
			}
		}
		return ""
	}
	return ""
}

// Read calls f for each record of a log, in order, until it returns an error.
func Read(dir string, f func(r *Record, line []byte) error) error {
	names, err := segmentNames(dir)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return fmt.Errorf("read log %s: %w", dir, os.ErrNotExist)
	}
	for _, name := range names {
		if err := readFile(dir, name, f); err != nil {
			return err
		}
	}
	return nil
}

func readFile(dir, name string, f func(*Record, []byte) error) error {
	file, err := openLog(dir, name)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := newLines(file)
	for n := 1; ; n++ {
		line, err := lines.next()
		if errors.Is(err, io.EOF) || errors.Is(err, errTorn) || errors.Is(err, errLong) {
			return nil // Verify tells
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("read %s:%d: %w", name, n, err)
		}
		if err := f(&r, line); err != nil {
			return err
		}
	}
}

// errNoFile says that something else has a file's name: a link, a directory, a FIFO, a device.
var errNoFile = errors.New("not a regular file")

// openLog opens a file of a log, whose directory may be anybody's: nothing is followed, and nothing is waited for.
func openLog(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%w but a symbolic link", errNoFile)
	case errors.Is(err, unix.ENXIO): // a socket
		return nil, errNoFile
	case err != nil:
		return nil, fmt.Errorf("read log: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNoFile
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// errLong is a line that no writer has written.
var errLong = fmt.Errorf("a line is longer than %d bytes", maxRecordBytes)

// errTorn is a last line without a line feed.
var errTorn = errors.New("the last line has no end")

// lines reads lines, which are bounded.
type lines struct {
	r *bufio.Reader
}

func newLines(f *os.File) *lines { return &lines{r: bufio.NewReaderSize(f, maxRecordBytes+1)} }

// next returns the next line without its line feed, valid until the next call. The error is io.EOF at the end, errTorn
// beside the rest of a file that does not end with a line feed.
func (l *lines) next() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	switch {
	case err == nil:
		return line[:len(line)-1], nil
	case errors.Is(err, io.EOF) && len(line) > 0:
		return line, errTorn
	case errors.Is(err, bufio.ErrBufferFull):
		return line, errLong
	}
	return nil, err
}

// more reports whether anything follows.
func (l *lines) more() bool {
	_, err := l.r.Peek(1)
	return err == nil
}
