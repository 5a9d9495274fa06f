package call

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// stdio are the streams of one command.
type stdio struct {
	in, out, err *os.File // the command's ends
	ours         []*os.File
	kept         [2]bounded
	stdin        string
	feed         *os.File
	copies       sync.WaitGroup
	mu           sync.Mutex
}

func newStdio(r *Request, uid, gid uint32) (s *stdio, err error) {
	s = &stdio{stdin: r.Stdin}
	s.kept[0].max, s.kept[1].max = r.MaxOutput, r.MaxOutput
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if r.Stdin != "" {
		if s.in, s.feed, err = OwnedPipe(uid, gid); err != nil {
			return nil, err
		}
		s.ours = append(s.ours, s.feed)
	}
	for i, end := range []**os.File{&s.out, &s.err} {
		read, write, err := OwnedPipe(uid, gid)
		if err != nil {
			return nil, err
		}
		*end = write
		s.ours = append(s.ours, read)
		s.copies.Go(func() {
			io.Copy(&s.kept[i], read) //nolint:errcheck // the end of the stream, or ours
		})
	}
	return s, nil
}

// started closes the command's ends, and feeds its input.
func (s *stdio) started() {
	for _, f := range []**os.File{&s.in, &s.out, &s.err} {
		if *f != nil {
			(*f).Close() //nolint:errcheck // the command has its own
			*f = nil
		}
	}
	if s.feed != nil {
		go func() {
			io.WriteString(s.feed, s.stdin) //nolint:errcheck // a command need not read it
			s.feed.Close()
		}()
	}
}

// lingerTime is how long output of processes that outlive their command is waited for.
const lingerTime = 100 * time.Millisecond

// drain waits for the end of the output. What stays behind in the background may hold the pipes open: its later output
// is not read.
func (s *stdio) drain() {
	done := make(chan struct{})
	go func() {
		s.copies.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(lingerTime):
		s.close()
		<-done
	}
}

func (s *stdio) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range []*os.File{s.in, s.out, s.err} {
		if f != nil {
			f.Close()
		}
	}
	for _, f := range s.ours {
		f.Close()
	}
	s.in, s.out, s.err, s.ours = nil, nil, nil, nil
}

// bounded keeps the first bytes of a stream and counts the rest.
type bounded struct {
	max     int
	kept    strings.Builder
	dropped int64
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.max-b.kept.Len())
	b.kept.Write(p[:n])
	b.dropped += int64(len(p) - n)
	return len(p), nil
}

// text is what was kept, with one line that says what was not.
func (b *bounded) text() string {
	if b.dropped == 0 {
		return b.kept.String()
	}
	return fmt.Sprintf("%s\n[agentsafe: %d bytes more were not kept]\n", b.kept.String(), b.dropped)
}
