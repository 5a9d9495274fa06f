// Package patch reads patches as git writes them, and plain unified diffs, and applies them to contents in memory.
//
// Data in: the bytes of a patch, which anybody can have written, and what the files are that it names. Data out: what the
// files become, or an error that says where the patch does not fit. The package touches no file.
//
// A hunk is looked for at its line, then ever further from it; it has to match as a whole, and one that begins at the
// first line, or ends without context, matches there alone. This is what git apply does without options. Modes other than
// those of git (a regular file, an executable one, a symlink), submodules, names that lead out of the tree, and a file
// that is named twice are refused. What is deflated in a patch is inflated up to the length that the patch says, and at
// most [MaxFile].
//
// Source: git's documentation, diff-format and gitformat-pack (deltas).
//
// Rejected: github.com/bluekeyes/go-gitdiff, which inflates what it finds without a bound and looks for a hunk at its
// line alone; running git apply, which would need git on the host and run it on a folder that a task has filled.
package patch
