package container

import (
	"errors"

	"github.com/agentsafe/agentsafe/runtime/ident"
)

// Errors that callers branch on. Their texts are what engines look for in runc's messages.
var (
	ErrNotExist   = errors.New("container does not exist")
	ErrExist      = errors.New("container with given ID already exists")
	ErrNotRunning = errors.New("container not running")
	ErrPaused     = errors.New("container is paused")
	ErrNotPaused  = errors.New("container is not paused")
	ErrRunning    = errors.New("container is running")
	ErrNoGateway  = errors.New("container has no gateway")
	ErrInvalidID  = ident.ErrInvalid
)

// InvalidError says which field of a spec is wrong, and why.
type InvalidError struct{ Field, Reason string }

// Error implements error.
func (e *InvalidError) Error() string { return e.Field + ": " + e.Reason }

func invalid(field, reason string) error { return &InvalidError{Field: field, Reason: reason} }
