package criu

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/replace"
)

// CRIU calls a program at points of a restore. Ours, three lines of shell, says so into one pipe and waits for the answer
// from another, so that what is done there is done by this process.

// stage is such a program with its pipes, in a directory of its own.
type stage struct {
	dir         string
	ask, answer *os.File
}

const scriptName, askName, answerName = "script", "ask", "answer"

// quote makes one word of the shell's of s.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// newStage makes one below a directory in which programs may be executed.
func newStage(below string) (*stage, error) {
	dir, err := os.MkdirTemp(below, "agentsafe-restore")
	if err != nil {
		return nil, fmt.Errorf("make directory for CRIU's script: %w", err)
	}
	s := &stage{dir: dir}
	for _, pipe := range []struct {
		name string
		f    **os.File
	}{{askName, &s.ask}, {answerName, &s.answer}} {
		path := filepath.Join(dir, pipe.name)
		if err = unix.Mkfifo(path, 0o600); err == nil {
			// Both ends are held, so that opening waits for nobody.
			*pipe.f, err = os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			s.close()
			return nil, fmt.Errorf("make pipe for CRIU's script: %w", err)
		}
	}
	text := "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = setup-namespaces ] || exit 0\ncd " + quote(dir) +
		" && echo \"$CRTOOLS_INIT_PID\" >" + askName + " && read -r answer <" + answerName + " && [ \"$answer\" = go ]\n"
	at, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = replace.File(at, scriptName, []byte(text), 0o700)
		at.Close()
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("write CRIU's script: %w", err)
	}
	return s, nil
}

func (s *stage) script() string { return filepath.Join(s.dir, scriptName) }

// serve does what is to be done when CRIU comes to the point, with the first process's number, and returns its error, nil
// if CRIU has not come there before the pipes were closed.
func (s *stage) serve(do func(pid int) error) error {
	line, err := bufio.NewReader(s.ask).ReadString('\n')
	if err != nil {
		return nil //nolint:nilerr // CRIU has ended before, and says why
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err == nil {
		err = do(pid)
	}
	answer := "go\n"
	if err != nil {
		answer = "no\n"
	}
	_, werr := s.answer.WriteString(answer)
	return errors.Join(err, werr)
}

// hangUp ends a serve that waits.
func (s *stage) hangUp() { s.ask.Close() }

// close removes it.
func (s *stage) close() {
	s.ask.Close()       // nil has a Close, too
	s.answer.Close()    // likewise
	os.RemoveAll(s.dir) //nolint:errcheck // a pipe, a pipe and a script
}
