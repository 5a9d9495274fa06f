package ident

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInvalid says that a name can't be a container's id. Its text is what engines look for in runc's messages.
var ErrInvalid = errors.New("invalid container ID")

const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-."

// Validate accepts what runc accepts, up to a file name's 255 bytes.
func Validate(id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: empty", ErrInvalid)
	case len(id) > 255:
		return fmt.Errorf("%w: %d bytes, at most 255", ErrInvalid, len(id))
	case id[0] == '.':
		return fmt.Errorf("%w: %q starts with a dot", ErrInvalid, id)
	}
	for _, c := range id {
		if !strings.ContainsRune(alphabet, c) {
			return fmt.Errorf("%w: %q has %q, want letters, digits, _ + - .", ErrInvalid, id, c) //nolint:staticcheck // the dot is one of them
		}
	}
	return nil
}
