package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
)

// stdio is what the first process gets as descriptors 0, 1 and 2, and what is
// copied between them and ours.
type stdio struct {
	in, out, err *os.File // the container's ends
	ours         []*os.File
	copies       sync.WaitGroup
	feed         func() // copies standard input; not waited for
}

// openStdio decides for each of our three descriptors whether the task may hold
// it itself. A pipe, a socket and the null device: yes. Everything else goes
// through a pipe: a terminal could be typed into (TIOCSTI), a directory is a way
// out of the container, a file opened for writing could be opened again for
// reading. uid and gid get the pipes, so that /dev/stdout can be opened.
// captured, if not nil, gets the two outputs in our descriptors' place.
func openStdio(uid, gid uint32, captured *[2]capture) (*stdio, error) {
	s := &stdio{}
	err := s.openIn(uid, gid)
	if err == nil {
		var w1, w2 io.Writer
		if captured != nil {
			w1, w2 = &captured[0], &captured[1]
		}
		if s.out, err = s.openOut(os.Stdout, w1, uid, gid); err == nil {
			s.err, err = s.openOut(os.Stderr, w2, uid, gid)
		}
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stdio) openIn(uid, gid uint32) error {
	direct, err := mayHold(os.Stdin)
	if err != nil || direct {
		s.in = os.Stdin
		return err
	}
	r, w, err := call.OwnedPipe(uid, gid)
	if err != nil {
		return err
	}
	s.in, s.ours = r, append(s.ours, r)
	s.feed = func() {
		io.Copy(w, os.Stdin) //nolint:errcheck // the end of either side ends it
		w.Close()
	}
	return nil
}

func (s *stdio) openOut(f *os.File, w io.Writer, uid, gid uint32) (*os.File, error) {
	if w == nil {
		direct, err := mayHold(f)
		if err != nil || direct {
			return f, err
		}
		w = f
	}
	r, pipe, err := call.OwnedPipe(uid, gid)
	if err != nil {
		return nil, err
	}
	s.ours = append(s.ours, pipe)
	s.copies.Go(func() {
		defer r.Close()
		if _, err := io.Copy(w, r); err != nil {
			io.Copy(io.Discard, r) //nolint:errcheck // our reader is gone: the task must not hang
		}
	})
	return pipe, nil
}

// started closes our copies of the container's ends, so that the end of file
// can arrive, and starts to feed the input.
func (s *stdio) started() {
	s.close()
	if s.feed != nil {
		go s.feed()
	}
}

// drain waits until everything that the container wrote has been passed on. All
// of its processes must have ended.
func (s *stdio) drain() { s.copies.Wait() }

func (s *stdio) close() {
	for _, f := range s.ours {
		f.Close()
	}
	s.ours = nil
}

// mayHold says whether a task may have the descriptor itself. A closed one is an
// error, and so is a directory.
func mayHold(f *os.File) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, fmt.Errorf("%s: %w", f.Name(), err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO, unix.S_IFSOCK:
		return true, nil
	case unix.S_IFCHR:
		return st.Rdev == unix.Mkdev(1, 3), nil
	case unix.S_IFDIR:
		return false, fmt.Errorf("%s: %w", f.Name(), errors.New("is a directory"))
	default:
		return false, nil
	}
}

// maxCaptureBytes bounds what --json keeps of each output.
const maxCaptureBytes = 16 << 20

// capture keeps the first bytes written to it and counts the rest.
type capture struct {
	kept    bytes.Buffer
	dropped int64
}

func (c *capture) Write(p []byte) (int, error) {
	n := min(len(p), maxCaptureBytes-c.kept.Len())
	c.kept.Write(p[:n])
	c.dropped += int64(len(p) - n)
	return len(p), nil
}
