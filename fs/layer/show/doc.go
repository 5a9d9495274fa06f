// Package show writes what a layer changes: for people to read ([Unified], [Safe]), for git ([Patch]) and for OCI tools
// ([Tar]).
//
// Data in: two trees and the list of their differences, all of it hostile. Data out: text that a terminal can't be
// driven by (escape sequences, bidirectional marks and invisible characters are shown as what they are), patches that
// git apply accepts, and layer archives with whiteout files.
//
// It refuses nothing that package tree lets through, but bounds what it reads: texts above [MaxText] are noted and not
// compared, as binary files are. A patch holds regular files and symlinks; whatever else there is, it lists.
//
// Minimum kernel: none of its own.
//
// Rejected: calling git to make patches (a layer is no repository, and git reads configuration from where it runs), and
// filtering terminal output afterwards (what is a path, and what an escape, is known here alone).
package show
