// Package ui is the terminal interface of `agentsafectl ui`: the log of a container's transactions, their diffs, undo and
// redo, and the choice of what to promote.
//
// Data in: key presses, and what [Actions] return. Data out: screens of text, and calls of Actions. The package opens no
// layers itself: each action does, so that they are not locked while a person reads.
//
// It prints nothing that it has not passed through show.Safe, or that does not come from show.Unified, which does; so a
// task's names and contents can't drive the terminal. It writes to the host only after a question that names how much.
//
// Minimum kernel: none of its own. Rejected: a mouse (what is clicked by mistake is written), and editing diffs (what is
// promoted is what was tested).
package ui
