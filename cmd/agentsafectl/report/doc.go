// Package report tells the life of one container from its evidence, to people: as one self-contained HTML page, as
// Markdown, or as JSON.
//
// Data in: the directory of a log (package audit), what verifying it has found, and the container's layers if they are
// still there. Data out: a [Report], and its writers. The page needs no network and runs no script; its policy
// (Content-Security-Policy) forbids both. It reads on a phone and prints on paper.
//
// Everything that a task has chosen (command lines, file names, host names, contents of files) is hostile: what can't be
// seen is written as an escape (show.Safe), and html/template escapes the rest for its context.
//
// It refuses nothing that can be read: a log that was tampered with makes a report that says so at its top. Records that
// it does not know are counted and left out. Lists are bounded; what is left out is said.
//
// Minimum kernel: none of its own.
//
// Rejected: a library for charts (the plots are a few rectangles, and a page that an auditor opens should hold nothing
// that somebody has to trust), drawing from live counters (a report tells what the log tells, and nothing that can't be
// verified).
package report
