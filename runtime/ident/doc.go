// Package ident says what a container may be called.
//
// Data in: a name that an engine or a person gave. Data out: nothing, or [ErrInvalid]. What is accepted can be a file's
// name, so that no id names anything outside of the directory of states; it refuses slashes, "..", NUL, what is empty or
// longer than a file's name. It is a package of its own for programs that are too small for runtime/container.
// Minimum kernel: none.
package ident
