// Package tree reads and writes directory trees that an enemy may have made: the upper directory of an overlay, a host
// folder, a merged view.
//
// Data in: open directories. Data out: [Change] values, which say exactly how one tree differs from another, and trees
// that are changed one path at a time. Everything is done by handle: a path is resolved beneath its [Root], without
// following a symlink and without crossing a mount (openat2), so that no name in a tree can lead out of it, also while
// somebody renames in it. Names are bytes: nothing is decoded, and nothing is printed here.
//
// # The upper directory's format
//
// A character device 0:0 is a whiteout: the name is deleted below. A directory with the attribute
// trusted.overlay.opaque=y hides what is below it. [Capture] writes that format as well, so what a transaction is about
// to replace can be kept, compared and put back by the same code. Source: overlayfs.rst, "whiteouts and opaque
// directories".
//
// # Refusals
//
// Attributes by which one file of a layer stands for another (redirect, metacopy) are an error and not followed:
// agentsafe mounts with both turned off, so whoever finds one looks at a layer that somebody has made. Trees deeper than
// a path can name, and more than [MaxEntries] entries, are refused.
//
// Minimum kernel: 5.15.
//
// Rejected: containerd/continuity's DiffDirChanges and the archive writers: they walk paths by name, drop user
// attributes, follow neither redirects nor refuse them, and compare by size and time alone.
package tree
