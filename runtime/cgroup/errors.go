package cgroup

import (
	"errors"
	"fmt"
)

var (
	// ErrUnsupported is matched by errors about something that this host or this cgroup can't do: a controller that is
	// not mounted or not delegated, a v2 operation on v1.
	ErrUnsupported = errors.New("not supported by this cgroup")
	// ErrNotEmpty is matched when a cgroup that is to be created exists and holds processes.
	ErrNotEmpty = errors.New("cgroup is not empty")
	// ErrFrozen is matched when a cgroup that is to be created exists and is frozen.
	ErrFrozen = errors.New("cgroup is frozen")
)

// FieldError says which field of the OCI configuration can't be applied, and why.
type FieldError struct {
	Field  string // as in config.json, "linux.resources.pids.limit"
	Reason string
	Err    error // optional: ErrUnsupported or a kernel error
}

func (e *FieldError) Error() string {
	if e.Err == nil {
		return e.Field + ": " + e.Reason
	}
	return e.Field + ": " + e.Reason + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *FieldError) Unwrap() error { return e.Err }

// DelegationError says that a cgroup exists in principle but this process may not create or change it: rootless without
// delegation, or a read-only cgroup file system. It matches ErrUnsupported.
type DelegationError struct {
	Controller string // "memory", or "" for the unified hierarchy
	Path       string
	Rootless   bool
	Err        error
}

func (e *DelegationError) Error() string {
	name := e.Controller
	if name == "" {
		name = "unified"
	}
	hint := "mount it writable"
	if e.Rootless {
		hint = "have it delegated (systemd: Delegate=yes for the user's service) and name it in cgroupsPath"
	}
	return fmt.Sprintf("cgroup %s (%s) can't be written: %v; %s", e.Path, name, e.Err, hint)
}

// Unwrap returns the cause.
func (e *DelegationError) Unwrap() []error { return []error{ErrUnsupported, e.Err} }

func badField(field, format string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

func unsupportedField(field, format string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...), Err: ErrUnsupported}
}
