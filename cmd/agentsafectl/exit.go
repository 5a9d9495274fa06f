package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Exit statuses of our own, as GNU timeout, env and the shells give them.
const (
	exitTimeout     = 124
	exitOwn         = 125
	exitNoExec      = 126
	exitNoCommand   = 127
	exitSignalAdded = 128
)

// exitError ends the program with a status. err, if there is one, is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// startError marks that the container was made and its command could not be
// executed.
type startError struct{ err error }

func (e *startError) Error() string { return e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

// exitCode returns the status for an error of run: 127 and 126 say of the
// command what a shell would say, everything else is our own failure.
func exitCode(err error) int {
	var start *startError
	switch {
	case !errors.As(err, &start):
		return exitOwn
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return exitNoCommand
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP),
		errors.Is(err, unix.ETXTBSY), errors.Is(err, unix.E2BIG), errors.Is(err, unix.EPERM):
		return exitNoExec
	default:
		return exitOwn
	}
}
