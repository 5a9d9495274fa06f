package denials

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Kind is what was refused.
type Kind string

// The kinds.
const (
	Syscall Kind = "syscall"
	File    Kind = "file"
	Network Kind = "network"
	Limit   Kind = "limit"
	Policy  Kind = "policy" // at creation: cut, removed, or not enforceable on this kernel
	Note    Kind = "note"   // about the record itself
)

// Denial is one refusal.
type Denial struct {
	Time time.Time `json:"time,omitzero"`
	Kind Kind      `json:"kind"`
	// What was refused: "ptrace", "write /etc/passwd", "example.com:443".
	What string `json:"what"`
	// Answer is what the task got: an errno, or what a limit does.
	Answer string `json:"answer,omitempty"`
	// Rule decided, in the words of a profile; Why is for people; Allow is what would allow it.
	Rule  string `json:"rule,omitempty"`
	Why   string `json:"why,omitempty"`
	Allow string `json:"allow,omitempty"`
	// Program is what the process called itself.
	Program string `json:"program,omitempty"`
	// Count is how often it was refused, where that is more than once.
	Count int `json:"count,omitempty"`
}

// Bounds of a Log and of the strings in it.
const (
	MaxDistinct = 1000
	maxText     = 512
)

// Log writes denials to a file. It is safe for concurrent use; the nil Log takes them and does nothing.
type Log struct {
	mu   sync.Mutex
	out  *os.File
	seen map[string]int
	full bool
}

// NewLog returns a Log that appends to a file, of which it takes ownership.
func NewLog(out *os.File) *Log { return &Log{out: out, seen: map[string]int{}} }

// Close closes the file.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out != nil {
		l.out.Close()
		l.out = nil
	}
}

// Add counts a refusal, and writes it if it is new or the 10th, 100th, ... of its kind. It reports whether it was new.
func (l *Log) Add(d Denial) bool {
	if l == nil {
		return false
	}
	d = d.Clipped()
	l.mu.Lock()
	defer l.mu.Unlock()
	key := string(d.Kind) + " " + d.What
	n := l.seen[key] + 1
	if n == 1 && len(l.seen) >= MaxDistinct {
		if !l.full {
			l.full = true
			l.write(Denial{Time: d.Time, Kind: Note, What: fmt.Sprintf("more than %d different refusals: the rest is not listed", MaxDistinct)})
		}
		return false
	}
	l.seen[key] = n
	if n > 1 {
		d.Count = n
	}
	if powerOfTen(n) {
		l.write(d)
	}
	return n == 1
}

func powerOfTen(n int) bool {
	for n >= 10 && n%10 == 0 {
		n /= 10
	}
	return n == 1
}

func (l *Log) write(d Denial) {
	if l.out == nil {
		return
	}
	if d.Time.IsZero() {
		d.Time = time.Now()
	}
	d.Time = d.Time.UTC().Truncate(time.Millisecond)
	line, err := json.Marshal(d)
	if err != nil {
		return // Denial has nothing that JSON can't hold
	}
	l.out.Write(append(line, '\n')) //nolint:errcheck // a full file system must not end the task
}

// Clipped returns a denial whose strings, which a task may have chosen, are bounded and valid UTF-8.
func (d Denial) Clipped() Denial {
	for _, s := range []*string{&d.What, &d.Answer, &d.Rule, &d.Why, &d.Allow, &d.Program} {
		if len(*s) > maxText {
			cut := maxText
			for cut > 0 && !utf8.RuneStart((*s)[cut]) {
				cut--
			}
			*s = (*s)[:cut] + "..."
		}
		*s = strings.ToValidUTF8(*s, "?")
	}
	return d
}

// ParseLine reads one line of a log.
func ParseLine(line []byte) (Denial, error) {
	var d Denial
	if err := json.Unmarshal(line, &d); err != nil {
		return d, fmt.Errorf("parse denial: %w", err)
	}
	return d, nil
}

// Distinct counts what a log says was refused to the task: each thing once, however often it was tried, and without what
// was cut from its policy when it was created. A last line that is not complete does not count.
func Distinct(log io.Reader) (int, error) {
	seen := map[Denial]bool{}
	r := bufio.NewReader(log)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return len(seen), nil
		}
		if err != nil {
			return 0, fmt.Errorf("read denials: %w", err)
		}
		d, err := ParseLine(bytes.TrimSpace(line))
		if err != nil {
			return 0, err
		}
		if d.Kind != Policy && d.Kind != Note {
			seen[Denial{Kind: d.Kind, What: d.What, Rule: d.Rule, Program: d.Program}] = true
		}
	}
}
